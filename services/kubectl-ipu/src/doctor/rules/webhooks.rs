//! Admission webhooks and their certificate.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};
use x509_parser::pem::Pem;

use super::super::facts::{Fact, Facts, Webhook, WebhookConfiguration};
use super::super::finding::{Checked, Finding, Rule};
use super::restore;
use crate::installation::Installation;

/// Remaining validity below which a renewal is overdue: the operator renews 30 days before the end.
const RENEWAL_OVERDUE: SignedDuration = SignedDuration::from_hours(15 * 24);
/// Port of the Service of the webhooks in the manifests.
const PORT: i32 = 443;

pub(super) const RULES: &[Rule] = &[
    Rule {
        code: "WebhookAbsent",
        condition: "A webhook configuration of the installation is absent.",
        effect: "Jobs get no defaults, or are not validated.",
        remedy: "Apply the webhooks of the manifests, or the chart, of the installed version again.",
        check: absent,
    },
    Rule {
        code: "WebhookMisdirected",
        condition: "A webhook leads to another Service or path than that of the operator, or its Service is absent.",
        effect: "No job can be submitted.",
        remedy: "Direct the webhook to the Service of the operator, and create an absent Service again.",
        check: misdirected,
    },
    Rule {
        code: "WebhookWrongBundle",
        condition: "The `caBundle` of a webhook is empty or lacks the CA of the operator.",
        effect: "The API server does not trust the operator, and no job can be submitted.",
        remedy: "The leader restores the bundle. Restart the operator, and read its log if the bundle stays wrong.",
        check: wrong_bundle,
    },
    Rule {
        code: "WebhookCertificateExpires",
        condition: "All CA certificates in a `caBundle` end within 15 days.",
        effect: "The operator has not renewed its certificate in time. After the end, no job can be submitted.",
        remedy: "Delete the Secret of the certificate: the operator makes a new one.",
        check: expires,
    },
];

/// Returns the configurations of the installation, and a finding for each kind that is absent.
fn own<'a>(
    installation: &Installation,
    all: &'a [WebhookConfiguration],
) -> impl Iterator<Item = &'a WebhookConfiguration> {
    let installation = installation.clone();
    all.iter().filter(move |configuration| {
        installation.webhook_configuration.as_ref() == Some(&configuration.name)
            || configuration.instance.as_ref() == Some(&installation.instance)
    })
}

fn sources(facts: &Facts) -> [(&'static str, &Fact<Vec<WebhookConfiguration>>); 2] {
    [
        ("MutatingWebhookConfiguration", &facts.mutating),
        ("ValidatingWebhookConfiguration", &facts.validating),
    ]
}

fn absent(facts: &Facts) -> Checked {
    let installation = facts.installation.get()?;
    let mut findings = Vec::new();
    for (kind, configurations) in sources(facts) {
        let configurations = configurations.get()?;
        if own(installation, configurations).any(|configuration| !configuration.webhooks.is_empty()) {
            continue;
        }
        let name = installation
            .webhook_configuration
            .as_deref()
            .unwrap_or("of the installation");
        findings.push(Finding::new(
            format!("{kind} {name}"),
            "absent, or without a webhook for IPUJobs",
            "one webhook for IPUJobs",
            restore::webhooks(installation),
        ));
    }
    Ok(findings)
}

/// Returns the path of the operator for the webhooks of a kind of configuration.
fn path_of(configuration: &WebhookConfiguration) -> &'static str {
    if configuration.kind == "MutatingWebhookConfiguration" {
        "/mutate-graphcore-ai-v1alpha1-ipujob"
    } else {
        "/validate-graphcore-ai-v1alpha1-ipujob"
    }
}

/// Returns the command that directs a webhook to the Service of the operator. Only that field is changed.
fn redirect(
    installation: &Installation,
    service: Option<&Service>,
    configuration: &WebhookConfiguration,
    webhook: &Webhook,
) -> String {
    let ports = service.and_then(|service| service.spec.as_ref()?.ports.as_ref());
    let port = ports
        .and_then(|ports| ports.first())
        .map_or(PORT, |port| port.port);
    let client = format!("/webhooks/{}/clientConfig", webhook.index);
    let mut patch = Vec::new();
    if webhook.service.is_none() {
        patch.push(json!({"op": "remove", "path": format!("{client}/url")}));
    }
    patch.push(
        json!({"op": "add", "path": format!("{client}/service"), "value": {
            "namespace": installation.namespace, "name": installation.webhook_service,
            "path": path_of(configuration), "port": port,
        }}),
    );
    format!(
        "kubectl patch {} {} --type=json -p '{}'",
        configuration.kind.to_lowercase(),
        configuration.name,
        Value::Array(patch)
    )
}

/// Calls `check` for each webhook of the installation.
fn each(facts: &Facts, mut check: impl FnMut(&WebhookConfiguration, &Webhook) -> Option<Finding>) -> Checked {
    let installation = facts.installation.get()?;
    let mut findings = Vec::new();
    for (_, configurations) in sources(facts) {
        for configuration in own(installation, configurations.get()?) {
            findings.extend(
                configuration
                    .webhooks
                    .iter()
                    .filter_map(|webhook| check(configuration, webhook)),
            );
        }
    }
    Ok(findings)
}

fn misdirected(facts: &Facts) -> Checked {
    let installation = facts.installation.get()?;
    let Installation {
        namespace,
        webhook_service,
        ..
    } = installation;
    let own_service = facts.webhook_service.get()?.as_ref();
    each(facts, |configuration, webhook| {
        let object = format!(
            "{} {}, webhook {}",
            configuration.kind, configuration.name, webhook.name
        );
        let path = path_of(configuration);
        let expected = format!("Service {namespace}/{webhook_service} and the path {path}");
        let (actual, command) = match &webhook.service {
            Some((of, service, called))
                if of == namespace && service == webhook_service && called == path =>
            {
                if own_service.is_some() {
                    return None;
                }
                let actual = format!("Service {namespace}/{webhook_service} is absent");
                (actual, restore::webhooks(installation))
            }
            Some((of, service, called)) => (
                format!("leads to Service {of}/{service}{called}"),
                redirect(installation, own_service, configuration, webhook),
            ),
            None => (
                "leads to a URL outside of the cluster".into(),
                redirect(installation, own_service, configuration, webhook),
            ),
        };
        Some(Finding::new(object, actual, expected, command))
    })
}

fn wrong_bundle(facts: &Facts) -> Checked {
    let installation = facts.installation.get()?;
    let own_ca = match &installation.webhook_secret {
        Some(secret) => {
            let ca = certificates(facts.webhook_ca.get()?.as_deref().unwrap_or_default());
            let Installation { namespace, .. } = installation;
            let reason = format!("Secret {namespace}/{secret} is absent, or has no certificate in ca.crt");
            if ca.is_empty() { Err(reason) } else { Ok(ca) }
        }
        // Another program makes the certificate.
        None => Ok(Vec::new()),
    };
    let findings = each(facts, |configuration, webhook| {
        let bundle = certificates(&webhook.ca_bundle);
        let own_ca = own_ca.as_deref().unwrap_or_default();
        let has_own = own_ca.is_empty() || own_ca.iter().any(|ca| bundle.contains(ca));
        if !bundle.is_empty() && has_own {
            return None;
        }
        let Installation {
            namespace, operator, ..
        } = installation;
        Some(Finding::new(
            format!(
                "{} {}, webhook {}",
                configuration.kind, configuration.name, webhook.name
            ),
            if bundle.is_empty() {
                "caBundle has no certificate"
            } else {
                "caBundle lacks the CA certificates of the operator's Secret"
            },
            "the CA certificates of the operator",
            format!("kubectl -n {namespace} rollout restart deployment/{operator}"),
        ))
    })?;
    match own_ca {
        Err(reason) if findings.is_empty() => Err(reason),
        _ => Ok(findings),
    }
}

fn expires(facts: &Facts) -> Checked {
    let installation = facts.installation.get()?;
    let now = *facts.api_time.get()?;
    each(facts, |configuration, webhook| {
        let ends = certificates(&webhook.ca_bundle)
            .iter()
            .filter_map(|der| end_of(der))
            .max()?;
        if ends.duration_since(now) >= RENEWAL_OVERDUE {
            return None;
        }
        let Installation {
            namespace, operator, ..
        } = installation;
        let command = match &installation.webhook_secret {
            Some(secret) => format!("kubectl -n {namespace} delete secret {secret}"),
            None => format!("kubectl -n {namespace} describe deployment/{operator}"),
        };
        Some(Finding::new(
            format!(
                "{} {}, webhook {}",
                configuration.kind, configuration.name, webhook.name
            ),
            format!("the last CA certificate ends at {ends:.0}"),
            "at least 15 days of validity",
            command,
        ))
    })
}

/// Returns the certificates of a PEM bundle.
fn certificates(pem: &[u8]) -> Vec<Vec<u8>> {
    let certificates = Pem::iter_from_buffer(pem).filter_map(Result::ok);
    certificates
        .filter(|pem| pem.label == "CERTIFICATE")
        .map(|pem| pem.contents)
        .collect()
}

/// Returns the end of the validity of a certificate.
fn end_of(der: &[u8]) -> Option<Timestamp> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}
