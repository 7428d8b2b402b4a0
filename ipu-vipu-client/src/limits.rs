//! Limits of both transports.

/// Maximum size of one reply in bytes. The largest documented system has 65,536 IPUs (1,024 racks, IPU-POD64
/// data sheet). With one partition per IPU and about 400 bytes of JSON each, its listing has 26 MB.
pub(crate) const MAX_REPLY_BYTES: usize = 32 * 1024 * 1024;
