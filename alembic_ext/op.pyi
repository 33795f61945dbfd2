from alembic.op import *  # noqa: F403

from .operations import *  # noqa: F403
from .snowflake import *  # noqa: F403
