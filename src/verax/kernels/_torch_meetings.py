"""Who meets whom where most agents left most tasks out: nothing that a device would be quicker at, so NumPy does it."""

from verax.kernels._numpy_meetings import agreed, agreement, exact_sums, meetings

__all__ = ["agreed", "agreement", "exact_sums", "meetings"]
