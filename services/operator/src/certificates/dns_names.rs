//! Names under which the API server calls the webhooks, from their configurations.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;

/// Maximum number of names from the configurations: they usually have one or two, and the certificate is
/// sent in every handshake.
const MAX_WEBHOOK_NAMES: usize = 64;

/// Returns the names that the certificate must cover for the API server to trust it. Names that are invalid
/// in a certificate are omitted: no client can use them.
pub(super) fn webhook_names<'a>(clients: impl Iterator<Item = &'a WebhookClientConfig>) -> BTreeSet<String> {
    let names: BTreeSet<String> = clients
        .filter_map(webhook_name)
        .filter(|name| is_name_or_address(name))
        .collect();
    names.into_iter().take(MAX_WEBHOOK_NAMES).collect()
}

fn webhook_name(client: &WebhookClientConfig) -> Option<String> {
    if let Some(service) = &client.service {
        return Some(format!("{}.{}.svc", service.name, service.namespace));
    }
    let url: http::Uri = client.url.as_deref()?.parse().ok()?;
    let host = url.host()?.to_ascii_lowercase();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    Some(address.map_or(host.clone(), str::to_owned))
}

/// Returns whether `name` is an IP address or a valid DNS name.
pub(crate) fn is_name_or_address(name: &str) -> bool {
    let label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len()) && label.bytes().all(plain)
    };
    name.parse::<IpAddr>().is_ok() || name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::admissionregistration::v1::ServiceReference;

    use super::*;

    fn service_client(name: &str) -> WebhookClientConfig {
        WebhookClientConfig {
            service: Some(ServiceReference {
                name: name.into(),
                namespace: "graphcore".into(),
                ..ServiceReference::default()
            }),
            ..WebhookClientConfig::default()
        }
    }

    fn url_client(url: &str) -> WebhookClientConfig {
        WebhookClientConfig {
            url: Some(url.into()),
            ..WebhookClientConfig::default()
        }
    }

    #[test]
    fn webhook_names_are_the_service_name_with_namespace_or_the_url_host() {
        let clients = [
            service_client("hooks"),
            url_client("https://Hooks.example.com:8443/validate"),
            url_client("https://10.0.0.1/validate"),
            url_client("https://[fd00::1]:9443/validate"),
        ];
        let names = webhook_names(clients.iter());
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        assert_eq!(
            names,
            ["10.0.0.1", "fd00::1", "hooks.example.com", "hooks.graphcore.svc"]
        );
    }

    #[test]
    fn invalid_webhook_names_are_omitted_and_the_number_is_limited() {
        let invalid = [
            service_client("two words"),
            service_client(&"x".repeat(64)),
            service_client(""),
            url_client("/nowhere"),
            url_client("https://ä.example.com/"),
            WebhookClientConfig::default(),
        ];
        assert_eq!(webhook_names(invalid.iter()), BTreeSet::new());
        let many: Vec<_> = (0..1000)
            .map(|number| service_client(&format!("s{number}")))
            .collect();
        assert_eq!(webhook_names(many.iter()).len(), MAX_WEBHOOK_NAMES);
    }
}
