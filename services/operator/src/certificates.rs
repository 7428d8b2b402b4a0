//! The certificates that the operator makes itself: made, kept in a Secret that all operators share, told to the API server,
//! and renewed so that no request ever meets one that it does not trust.

mod keeper;
mod made;
mod names;
mod proxy;
mod secret;
mod state;

pub(crate) use self::keeper::CertRotator;
pub(crate) use self::made::CertBundle;
pub(crate) use self::names::is_name_or_address;
pub(crate) use self::proxy::ProxyKeeper;
pub use self::state::Rotation;
