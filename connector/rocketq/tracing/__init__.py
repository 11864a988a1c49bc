"""The way of messages: who sent, received and acknowledged them, recorded in a topic and found again."""
