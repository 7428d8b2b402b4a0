//! Admission webhooks and their certificate.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};
use x509_parser::pem::Pem;

use super::super::facts::{Fact, Facts, Webhook, WebhookConfiguration};
use super::super::finding::{Checked, Finding, Fix, Rule};
use super::restore;
use crate::installation::{Installation, Origin};

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
        condition: "The `caBundle` of a webhook is empty, or has neither a CA certificate of the webhooks' Secret nor the \
                    issuer of its certificate.",
        effect: "The API server does not trust the operator, and no job can be submitted.",
        remedy: "If the operator makes the certificate, restart it, and read its log if the bundle stays wrong. If another \
                 program makes it, correct the bundle there.",
        check: wrong_bundle,
    },
    Rule {
        code: "WebhookCertificateExpires",
        condition: "All CA certificates in a `caBundle`, or the certificate of the webhooks that another program makes, end \
                    within 15 days.",
        effect: "The operator has not renewed its certificate in time. After the end, no job can be submitted.",
        remedy: "If the operator makes the certificate, delete its Secret: the operator makes a new one. If another program \
                 makes it, renew it there, and keep the Secret.",
        check: expires,
    },
    Rule {
        code: "WebhookOrphaned",
        condition: "A webhook for IPUJobs leads to a Service in a namespace that does not exist.",
        effect: "No job can be submitted in the namespaces that it selects.",
        remedy: "Delete the configuration: its installation was removed with its namespace.",
        check: orphaned,
    },
];

/// Returns whether a configuration belongs to the examined installation, and not to another one with its
/// names.
fn is_own(facts: &Facts, configuration: &WebhookConfiguration) -> Result<bool, String> {
    let installation = facts.installation.get()?;
    if let Origin::Release(_) = configuration.origin {
        let is_same_namespace = configuration.release_namespace.as_ref() == Some(&installation.namespace);
        return Ok(is_same_namespace && configuration.origin == installation.origin);
    }
    let is_named = match &installation.webhook_configuration {
        Some(name) => *name == configuration.name,
        // Another program makes the certificate, and the operator does not know the name.
        None => {
            configuration.instance.as_ref() == Some(&installation.instance)
                && configuration.service_namespace() == Some(&installation.namespace)
        }
    };
    let leads_to = |other: &Installation| {
        configuration.webhooks.iter().any(|webhook| {
            let service = webhook.service.as_ref();
            service.is_some_and(|(namespace, name, _)| {
                *namespace == other.namespace && *name == other.webhook_service
            })
        })
    };
    let is_other = |operator: &Installation| !operator.is_same(installation);
    let all = facts.operators.get()?.iter();
    let mut others = all
        .filter_map(|operator| Installation::new(operator, None))
        .filter(is_other);
    Ok(is_named && !others.any(|other| leads_to(&other)))
}

/// Returns the configurations of the installation among those of one kind.
fn own<'a>(facts: &Facts, all: &'a [WebhookConfiguration]) -> Result<Vec<&'a WebhookConfiguration>, String> {
    let mut own = Vec::new();
    for configuration in all {
        if is_own(facts, configuration)? {
            own.push(configuration);
        }
    }
    Ok(own)
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
        let own = own(facts, configurations)?;
        if own.iter().any(|configuration| !configuration.webhooks.is_empty()) {
            continue;
        }
        let name = installation.webhook_configuration.as_deref();
        let is_named = |found: &&WebhookConfiguration| {
            name == Some(&found.name) && !own.iter().any(|own| own.name == found.name)
        };
        let (actual, fix) = match configurations.iter().find(is_named) {
            Some(other) => (
                format!(
                    "belongs to another installation, in namespace {}",
                    other
                        .release_namespace
                        .as_deref()
                        .or(other.service_namespace())
                        .unwrap_or("unknown")
                ),
                Fix::advice(
                    "Both installations have one prefix of object names. Install one of them with another \
                     `fullnameOverride`.",
                ),
            ),
            None => (
                "absent, or without a webhook for IPUJobs".into(),
                restore::webhooks(installation),
            ),
        };
        let object = format!("{kind} {}", name.unwrap_or("of the installation"));
        findings.push(Finding::new(object, actual, "one webhook for IPUJobs", fix));
    }
    Ok(findings)
}

/// Finds the configurations of installations that were removed by the deletion of their namespace.
fn orphaned(facts: &Facts) -> Checked {
    let namespaces = facts.namespaces.get()?;
    let exists = |name: &str| {
        let mut names = namespaces
            .iter()
            .filter_map(|namespace| namespace.metadata.name.as_deref());
        names.any(|existing| existing == name)
    };
    let mut findings = Vec::new();
    for (_, configurations) in sources(facts) {
        for configuration in configurations.get()? {
            let gone = configuration.webhooks.iter().find_map(|webhook| {
                let (namespace, ..) = webhook.service.as_ref()?;
                (!exists(namespace)).then_some(namespace)
            });
            let Some(namespace) = gone else { continue };
            // That of an installation which exists is misdirected.
            if facts.installation.get().is_ok() && is_own(facts, configuration)? {
                continue;
            }
            let (kind, name) = (configuration.kind, &configuration.name);
            let kind_name = kind.to_lowercase();
            let fix = if configuration.has_others {
                Fix::inspect(format!("kubectl get {kind_name} {name} -o yaml"))
                    .with_note("It has webhooks for other objects too: remove only those for IPUJobs.")
            } else {
                Fix::run(format!("kubectl delete {kind_name} {name}"))
            };
            findings.push(Finding::new(
                format!("{kind} {name}"),
                format!("leads to namespace {namespace}, which does not exist"),
                "absent, as its installation",
                fix,
            ));
        }
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
) -> Fix {
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
    let command = format!(
        "kubectl patch {} {} --type=json -p '{}'",
        configuration.kind.to_lowercase(),
        configuration.name,
        Value::Array(patch)
    );
    let fix = Fix::run(command);
    if installation.origin == Origin::Manifests {
        fix.with_note(restore::IMITATION)
    } else {
        fix.with_note(
            "The chart renders the same Service: no value has to be set, and the next upgrade keeps it.",
        )
    }
}

/// Calls `check` for each webhook of the installation.
fn each(facts: &Facts, mut check: impl FnMut(&WebhookConfiguration, &Webhook) -> Option<Finding>) -> Checked {
    let mut findings = Vec::new();
    for (_, configurations) in sources(facts) {
        for configuration in own(facts, configurations.get()?)? {
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
        let (actual, fix) = match &webhook.service {
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
        Some(Finding::new(object, actual, expected, fix))
    })
}

/// Returns the fix of a bundle whose certificate another program than the operator makes.
fn of_foreign_certificate(installation: &Installation, configuration: &WebhookConfiguration) -> Fix {
    let Installation {
        namespace, operator, ..
    } = installation;
    match &configuration.certificate {
        Some(certificate) => {
            let (namespace, name) = certificate.split_once('/').unwrap_or((namespace, certificate));
            Fix::inspect(format!("kubectl -n {namespace} describe certificate {name}"))
                .with_note("cert-manager makes the certificate and writes the bundle.")
        }
        None => restore::set_value(installation, "--set-file admissionWebhooks.caBundle=CA.crt")
            .unwrap_or_else(|| Fix::inspect(format!("kubectl -n {namespace} describe deployment/{operator}")))
            .or_note("Another program makes the certificate: renew it, and write its CA to `caBundle`."),
    }
}

fn wrong_bundle(facts: &Facts) -> Checked {
    let installation = facts.installation.get()?;
    let found = facts.webhook_certificates.get()?;
    let own_ca = certificates(&found.ca);
    // A Secret of another program may have no CA.
    let server = certificates(&found.server);
    let issuers: Vec<_> = server.iter().filter_map(|der| issuer_of(der)).collect();
    let is_known = !own_ca.is_empty() || !issuers.is_empty();
    let findings = each(facts, |configuration, webhook| {
        let bundle = certificates(&webhook.ca_bundle);
        let has_issuer = || {
            let mut subjects = bundle.iter().filter_map(|der| subject_of(der));
            subjects.any(|subject| issuers.contains(&subject))
        };
        // A former CA may have the name of the present one.
        let has_own = own_ca.iter().any(|ca| bundle.contains(ca)) || own_ca.is_empty() && has_issuer();
        if !bundle.is_empty() && (has_own || !is_known) {
            return None;
        }
        let Installation {
            namespace, operator, ..
        } = installation;
        let fix = match &installation.webhook_secret {
            Some(_) => Fix::run(format!(
                "kubectl -n {namespace} rollout restart deployment/{operator}"
            )),
            None => of_foreign_certificate(installation, configuration),
        };
        Some(Finding::new(
            format!(
                "{} {}, webhook {}",
                configuration.kind, configuration.name, webhook.name
            ),
            if bundle.is_empty() {
                "caBundle has no certificate"
            } else {
                "caBundle lacks the CA of the webhooks' certificate"
            },
            "the CA of the webhooks' certificate",
            fix,
        ))
    })?;
    if findings.is_empty() && !is_known {
        return Err(unknown_certificate(installation));
    }
    Ok(findings)
}

/// Returns the reason why the certificate of the webhooks is not known.
fn unknown_certificate(installation: &Installation) -> String {
    let Installation {
        namespace,
        webhook_secret,
        mounted_secret,
        ..
    } = installation;
    match webhook_secret.as_ref().or(mounted_secret.as_ref()) {
        Some(secret) => format!("Secret {namespace}/{secret} is absent, or has no certificate"),
        None => "the operator names no Secret with the certificate of its webhooks".into(),
    }
}

fn expires(facts: &Facts) -> Checked {
    let installation = facts.installation.get()?;
    let now = *facts.api_time.get()?;
    let mut findings = each(facts, |configuration, webhook| {
        let ends = certificates(&webhook.ca_bundle)
            .iter()
            .filter_map(|der| end_of(der))
            .max()?;
        if ends.duration_since(now) >= RENEWAL_OVERDUE {
            return None;
        }
        let fix = match &installation.webhook_secret {
            Some(secret) => Fix::run(format!(
                "kubectl -n {} delete secret {secret}",
                installation.namespace
            )),
            None => of_foreign_certificate(installation, configuration),
        };
        Some(Finding::new(
            format!(
                "{} {}, webhook {}",
                configuration.kind, configuration.name, webhook.name
            ),
            format!("the last CA certificate ends at {ends:.0}"),
            "at least 15 days of validity",
            fix,
        ))
    })?;
    // The operator's own certificate ends with its CA, and its Secret has another format.
    if installation.webhook_secret.is_some() || !findings.is_empty() {
        return Ok(findings);
    }
    let server = certificates(&facts.webhook_certificates.get()?.server);
    let server_end = server.first().and_then(|der| end_of(der));
    let (Some(secret), Some(server_end)) = (&installation.mounted_secret, server_end) else {
        return Err(unknown_certificate(installation));
    };
    if server_end.duration_since(now) < RENEWAL_OVERDUE {
        let Installation { namespace, .. } = installation;
        let fix = Fix::inspect(format!("kubectl -n {namespace} describe secret {secret}"))
            .with_note("Another program makes the certificate: renew it.");
        findings.push(Finding::new(
            format!("Secret {namespace}/{secret}"),
            format!("the certificate of the webhooks ends at {server_end:.0}"),
            "at least 15 days of validity",
            fix,
        ));
    }
    Ok(findings)
}

/// Returns the certificates of a PEM bundle.
fn certificates(pem: &[u8]) -> Vec<Vec<u8>> {
    let certificates = Pem::iter_from_buffer(pem).filter_map(Result::ok);
    certificates
        .filter(|pem| pem.label == "CERTIFICATE")
        .map(|pem| pem.contents)
        .collect()
}

/// Returns the encoded name of the issuer of a certificate.
fn issuer_of(der: &[u8]) -> Option<Vec<u8>> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    Some(certificate.issuer().as_raw().to_vec())
}

/// Returns the encoded name of the subject of a certificate.
fn subject_of(der: &[u8]) -> Option<Vec<u8>> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    Some(certificate.subject().as_raw().to_vec())
}

/// Returns the end of the validity of a certificate.
fn end_of(der: &[u8]) -> Option<Timestamp> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}
