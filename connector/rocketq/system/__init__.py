"""What differs between operating systems and Python installations."""
