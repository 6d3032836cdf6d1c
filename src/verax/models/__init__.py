"""Models as reports: an agent hands in an ONNX file, the operator runs it on inputs that nobody else sees.

    onnxfile    what may be in a file, read without loading it
    confine     walls: what is shut around a process, raised from inside
    inmate      what a jailed process does: prepare, raise the walls, then the stranger's part
    jail        the same from outside: limits, and nothing believed of what comes back
    answering   a model's answers to inputs, inside
    prediction  the same from outside: a report
    asked       what a round asks of models, and the inputs that it hides

`import verax` imports none of it, and onnxruntime is imported inside a jail only.
"""

from verax.models.jail import Limits, Walls, walls
from verax.models.prediction import EXAMPLE, predict

__all__ = ["EXAMPLE", "Limits", "Walls", "predict", "walls"]
