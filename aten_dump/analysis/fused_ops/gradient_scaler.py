"""What a gradient scaler does: it unscales gradients, looks for overflows among them, and updates the scale."""

from __future__ import annotations

from torch import Tensor


def unscale_(gradients: list[Tensor], found_inf: Tensor, inverse: Tensor) -> None:
    """Multiply each gradient by the inverse of the scale; torch's own kernel takes none in float64."""
    for gradient in gradients:
        if not gradient.isfinite().all():
            found_inf.fill_(1)
        gradient.mul_(inverse)


def update_scale_(scale: Tensor, tracker: Tensor, found_inf: Tensor, *settings: float) -> Tensor:
    """Lower the scale after an overflow, raise it after so many steps without one."""
    growth, backoff, interval = settings
    if found_inf.item():
        scale.mul_(backoff)
        tracker.zero_()
    elif tracker.item() + 1 < interval:
        tracker.add_(1)
    else:
        scale.mul_(growth)
        tracker.zero_()
    return scale
