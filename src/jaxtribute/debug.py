"""`jd.debug`: checks that replicas which should agree do agree."""

from jaxtribute._src.addons.training.replica_checks import check_replicas
from jaxtribute._src.public import publish as _publish

__all__ = [
    "check_replicas",
]

_publish(__name__)
