//! The names that the API server asks webhooks under, as their configurations say.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;

/// The most names that are taken from configurations: they have one or two, and a certificate is sent at every handshake.
const MAX_NAME_LEN: usize = 64;

/// The names that a certificate has to be for, so that the API server takes it from those that it asks. What can be no name in a
/// certificate is left out: nobody would be found under it.
pub(super) fn asked_names<'a>(clients: impl Iterator<Item = &'a WebhookClientConfig>) -> BTreeSet<String> {
    let names: BTreeSet<String> = clients
        .filter_map(asked_name)
        .filter(|name| is_name_or_address(name))
        .collect();
    names.into_iter().take(MAX_NAME_LEN).collect()
}

fn asked_name(client: &WebhookClientConfig) -> Option<String> {
    if let Some(service) = &client.service {
        return Some(format!("{}.{}.svc", service.name, service.namespace));
    }
    let url: http::Uri = client.url.as_deref()?.parse().ok()?;
    let host = url.host()?.to_ascii_lowercase();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    Some(address.map_or(host.clone(), str::to_owned))
}

/// Whether `name` is an address, or a name as DNS has them.
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

    fn of_service(name: &str) -> WebhookClientConfig {
        WebhookClientConfig {
            service: Some(ServiceReference {
                name: name.into(),
                namespace: "graphcore".into(),
                ..ServiceReference::default()
            }),
            ..WebhookClientConfig::default()
        }
    }

    fn of_url(url: &str) -> WebhookClientConfig {
        WebhookClientConfig {
            url: Some(url.into()),
            ..WebhookClientConfig::default()
        }
    }

    #[test]
    fn a_service_is_asked_under_its_name_in_its_namespace_and_a_url_under_its_host() {
        let clients = [
            of_service("hooks"),
            of_url("https://Hooks.example.com:8443/validate"),
            of_url("https://10.0.0.1/validate"),
            of_url("https://[fd00::1]:9443/validate"),
        ];
        let names = asked_names(clients.iter());
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        assert_eq!(
            names,
            ["10.0.0.1", "fd00::1", "hooks.example.com", "hooks.graphcore.svc"]
        );
    }

    #[test]
    fn what_can_be_no_name_is_left_out_and_the_rest_is_bounded() {
        let odd = [
            of_service("two words"),
            of_service(&"x".repeat(64)),
            of_service(""),
            of_url("/nowhere"),
            of_url("https://ä.example.com/"),
            WebhookClientConfig::default(),
        ];
        assert_eq!(asked_names(odd.iter()), BTreeSet::new());
        let many: Vec<_> = (0..1000)
            .map(|number| of_service(&format!("s{number}")))
            .collect();
        assert_eq!(asked_names(many.iter()).len(), MAX_NAME_LEN);
    }
}
