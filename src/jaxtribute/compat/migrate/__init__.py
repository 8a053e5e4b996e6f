"""Reading a TensorFlow program, without running it, for what has to change; the engine of `jaxtribute migrate`."""

from jaxtribute.compat.migrate.documents import read as read
from jaxtribute.compat.migrate.findings import Finding as Finding
from jaxtribute.compat.migrate.scan import Report as Report
from jaxtribute.compat.migrate.scan import scan as scan
