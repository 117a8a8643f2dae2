"""Runs migrations on the connection of `database.migrate`."""

from alembic import context

from moerge_coordinator.storage.tables import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
