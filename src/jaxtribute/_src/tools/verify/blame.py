"""stub"""
from dataclasses import dataclass
from typing import Any
@dataclass
class Culprit:
    pattern: str = ""
    place: Any = None
class Suspects:
    def __init__(self, *a): pass
    def culprit(self): return Culprit()
    @staticmethod
    def repeated(record): return Culprit("repeated", record.place)
