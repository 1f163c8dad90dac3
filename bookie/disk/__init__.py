"""The seam to a machine's disks, and the real disk behind it.

Inside: files, directories, locks, disk threads, an ordered map of bytes, disk usage, reserved space.
Not inside: any file format. Entry points: ``Disk`` and ``RealDisk``.
"""

from bookie.disk.disk import Disk, File

__all__ = ["Disk", "File"]
