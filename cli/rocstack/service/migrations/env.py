"""Run by alembic, with the connection that `database.migrate` hands it."""

from alembic import context

from rocstack.service.tables import Table

context.configure(connection=context.config.attributes["connection"], target_metadata=Table.metadata)
with context.begin_transaction():
    context.run_migrations()
