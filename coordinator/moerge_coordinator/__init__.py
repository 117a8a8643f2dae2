"""The operator's side: REST, durable workflows, versions."""
