//! Bounds that both transports keep.

/// The most bytes of one reply. The largest documented system has 65,536 IPUs (1,024 racks, IPU-POD64 data sheet); listed
/// with every IPU a partition of its own, JSON of about 400 bytes each makes 26 MB.
pub(crate) const REPLY_BYTES_MAX: usize = 32 * 1024 * 1024;
