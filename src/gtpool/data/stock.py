"""The old home of ``gtpool.data.device_dataset``, kept for one version."""

from gtpool.data.device_dataset import DeviceDataset
from gtpool.deprecated import old_names

__all__ = ["DeviceDataset"]
__getattr__ = old_names(__name__, {"Stock": "DeviceDataset"})
