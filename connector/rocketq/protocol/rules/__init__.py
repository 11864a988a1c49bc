"""What messages, topics and groups may be: tags, properties, reserved names."""
