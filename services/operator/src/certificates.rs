//! The certificates that the operator makes itself: made, kept in a Secret that all operators share, told to the API server,
//! and renewed so that no request ever meets one that it does not trust.

mod dns_names;
mod issue;
mod proxy;
mod rotation;
mod rotator;
mod secret;

pub(crate) use self::dns_names::is_name_or_address;
pub(crate) use self::issue::CertBundle;
pub(crate) use self::proxy::ProxyKeeper;
pub use self::rotation::Rotation;
pub(crate) use self::rotator::CertRotator;
