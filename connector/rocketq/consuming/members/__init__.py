"""What a member of a group does: sessions, sharing queues, broadcasting."""
