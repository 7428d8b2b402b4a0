//! Exit codes and errors, which are those of `ipuctl`, and errors of the API server.

use ipu_core::ErrorChain;
pub(crate) use ipu_proxy_client::cli::{Code, Failure};

/// Maps an error of the API server; `action` is the attempted operation, such as `read IPUJob a/b`.
pub(crate) fn api_failure(action: impl AsRef<str>, error: kube::Error) -> Failure {
    let code = match &error {
        kube::Error::Api(status) => match status.code {
            401 | 403 => Code::Denied,
            404 => Code::NotFound,
            408 | 429 => Code::Unavailable,
            400..=499 => Code::Data,
            _ => Code::Unavailable,
        },
        _ => Code::Unavailable,
    };
    let message = format!("cannot {}: {}", action.as_ref(), api_text(&error));
    Failure::new(code, message)
}

/// Returns the message of an error of the API server, without the name of the Rust type.
pub(crate) fn api_text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Api(status) => format!("the API server answers {} {}", status.code, status.reason),
        error => ErrorChain(error).to_string(),
    }
}
