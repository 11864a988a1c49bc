"""What all commands share: connections, named clusters, output, progress, completion."""
