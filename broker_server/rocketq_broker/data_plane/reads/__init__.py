"""What reads messages and offsets: pull, receive, find, offsets."""
