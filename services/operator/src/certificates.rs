//! Certificates that the operator manages: created, stored in a Secret shared by all operators, published
//! to the API server, and renewed so that every certificate in use is trusted.

mod dns_names;
mod issue;
mod proxy;
mod rotation;
mod rotator;
mod secret;

pub(crate) use self::dns_names::is_name_or_address;
pub(crate) use self::issue::CertBundle;
pub(crate) use self::proxy::ProxyCertRotator;
pub use self::rotation::Rotation;
pub(crate) use self::rotator::CertRotator;
