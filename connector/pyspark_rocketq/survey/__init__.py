"""What a query asks the cluster: where its topics are, which offsets they hold, and message sizes."""
