//! Exit codes and errors, which are those of `kubectl ipu`.

pub(crate) use ipu_proxy_client::cli::{Code, Failure};
