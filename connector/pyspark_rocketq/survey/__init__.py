"""What a query asks the cluster: where its topics are, which offsets they hold, what their messages weigh."""
