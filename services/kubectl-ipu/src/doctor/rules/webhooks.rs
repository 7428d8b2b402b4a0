//! Admission webhooks and their certificate.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::{ServiceReference, ValidatingWebhook};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use x509_parser::pem::Pem;

use super::installation::operator_not_ready;
use crate::doctor::facts::{Facts, WebhookConfiguration, known};
use crate::doctor::finding::{CheckResult, Finding, Fix};
use crate::doctor::fixes;
use crate::installation::Installation;

/// Remaining validity below which a renewal is overdue: the operator renews 30 days before the end.
const RENEWAL_OVERDUE: SignedDuration = SignedDuration::from_hours(15 * 24);
/// Port of the Service of the webhooks, unless the Service has another one.
const PORT: i32 = 443;
/// Name of the port of the operator that serves the webhooks.
const PORT_NAME: &str = "webhooks";
const KINDS: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// A webhook for IPUJobs with its configuration and its index there.
type OwnWebhook<'a> = (&'a WebhookConfiguration, usize, &'a ValidatingWebhook);

/// Returns whether a configuration belongs to the installation: by its name, or, if another program makes the
/// certificate and the operator does not know the name, by its label.
fn is_own(installation: &Installation, configuration: &WebhookConfiguration) -> bool {
    match installation.webhook_configuration() {
        Some(name) => name == configuration.name(),
        None => {
            let labels = configuration.metadata.labels.as_ref();
            let instance = labels.and_then(|labels| labels.get("app.kubernetes.io/instance"));
            let mut services = configuration.services();
            instance.is_some_and(|instance| instance == installation.instance())
                && services.any(|service| service.namespace == installation.namespace)
        }
    }
}

/// Returns the installation and its webhooks.
fn own(facts: &Facts) -> Result<(&Installation, Vec<OwnWebhook<'_>>), String> {
    let installation = known(&facts.installation)?;
    let all = known(&facts.webhooks)?.iter();
    let own = all.filter(|configuration| is_own(installation, configuration));
    let webhooks = own.flat_map(|configuration| {
        let webhooks = configuration.webhooks.iter();
        webhooks.map(move |(index, webhook)| (configuration, *index, webhook))
    });
    Ok((installation, webhooks.collect()))
}

fn object(configuration: &WebhookConfiguration, webhook: &ValidatingWebhook) -> String {
    format!(
        "{} {}, webhook {}",
        configuration.kind,
        configuration.name(),
        webhook.name
    )
}

pub(super) fn absent(facts: &Facts) -> CheckResult {
    let (installation, own) = own(facts)?;
    let absent = KINDS
        .into_iter()
        .filter(|kind| own.iter().all(|(configuration, ..)| configuration.kind != *kind));
    let name = installation
        .webhook_configuration()
        .unwrap_or("of the installation");
    let finding = |kind| {
        let fix = fixes::restore(installation);
        Finding::new(
            format!("{kind} {name}"),
            "absent, or without a webhook for IPUJobs",
            fix,
        )
    };
    Ok(absent.map(finding).collect())
}

pub(super) fn misdirected(facts: &Facts) -> CheckResult {
    let (installation, own) = own(facts)?;
    let (namespace, name) = (&installation.namespace, installation.webhook_service());
    let service = known(&facts.webhook_service)?.as_ref();
    let ports = service.and_then(|service| service.spec.as_ref()?.ports.as_ref());
    let port = ports
        .and_then(|ports| ports.first())
        .map_or(PORT, |port| port.port);
    let mut findings = Vec::new();
    for (configuration, index, webhook) in own {
        let path = if configuration.kind == KINDS[0] {
            "/mutate-graphcore-ai-v1alpha1-ipujob"
        } else {
            "/validate-graphcore-ai-v1alpha1-ipujob"
        };
        let text = |service: &ServiceReference| {
            let (port, path) = (
                service.port.unwrap_or(PORT),
                service.path.as_deref().unwrap_or_default(),
            );
            format!(
                "Service {}/{}, port {port}, path {path}",
                service.namespace, service.name
            )
        };
        let right = ServiceReference {
            namespace: namespace.clone(),
            name: name.to_owned(),
            path: Some(path.to_owned()),
            port: Some(port),
        };
        let (expected, actual) = (text(&right), webhook.client_config.service.as_ref().map(text));
        if actual.as_ref() == Some(&expected) {
            continue;
        }
        let client = format!("/webhooks/{index}/clientConfig");
        let mut patch = vec![json!({"op": "add", "path": format!("{client}/service"), "value": right})];
        if webhook.client_config.service.is_none() {
            patch.insert(0, json!({"op": "remove", "path": format!("{client}/url")}));
        }
        let command = format!(
            "kubectl patch {} {} --type=json -p '{}'",
            configuration.kind.to_lowercase(),
            configuration.name(),
            Value::Array(patch)
        );
        findings.push(Finding::new(
            object(configuration, webhook),
            format!(
                "leads to {}, and not to {expected}",
                actual.as_deref().unwrap_or("a URL")
            ),
            Fix::run(command),
        ));
    }
    Ok(findings)
}

pub(super) fn unreachable(facts: &Facts) -> CheckResult {
    let (installation, own) = own(facts)?;
    let Some(error) = known(&facts.webhook_error)? else {
        return Ok(Vec::new());
    };
    if !operator_not_ready(facts)?.is_empty() {
        return Err("the operator is not ready".into());
    }
    if !absent(facts)?.is_empty() || !misdirected(facts)?.is_empty() {
        return Err("a webhook is absent or misdirected".into());
    }
    if !error_is_of(error, &own) {
        // Another installation, or one that is gone, has a rule of its own.
        return Err(format!("a webhook of another installation fails: {error}"));
    }
    let service = known(&facts.webhook_service)?.as_ref();
    let (namespace, operator) = (&installation.namespace, &installation.operator);
    let mut services = own
        .iter()
        .flat_map(|(configuration, ..)| configuration.services());
    let port = services.next().and_then(|service| service.port).unwrap_or(PORT);
    let (actual, fix) = match fixes::service_fault(installation, service, operator, (port, PORT_NAME)) {
        Some((actual, fix)) => (actual, fix),
        None if ["x509", "certificate"].iter().any(|part| error.contains(part)) => {
            (error.clone(), renew_bundle(installation, &own))
        }
        None => {
            let fix = Fix::inspect(format!(
                "kubectl -n {namespace} logs deployment/{}",
                operator.name_any()
            ));
            (error.clone(), fix)
        }
    };
    let object = format!("Service {namespace}/{}", installation.webhook_service());
    Ok(vec![Finding::new(object, actual, fix)])
}

/// Returns whether the error of the API server names one of these webhooks' Services.
fn error_is_of(error: &str, own: &[OwnWebhook<'_>]) -> bool {
    let mut services = own
        .iter()
        .flat_map(|(configuration, ..)| configuration.services());
    !error.contains("Post \"https://")
        || services.any(|service| error.contains(&format!("//{}.{}.svc", service.name, service.namespace)))
}

/// Returns the fix of a bundle without the CA of the webhooks' certificate.
fn renew_bundle(installation: &Installation, own: &[OwnWebhook<'_>]) -> Fix {
    let (namespace, operator) = (&installation.namespace, installation.operator.name_any());
    if installation.webhook_secret().is_some() {
        return Fix::run(format!(
            "kubectl -n {namespace} rollout restart deployment/{operator}"
        ))
        .with_note("The operator writes the bundle at its start.");
    }
    // The annotation by which cert-manager writes the bundle.
    let mut certificates = own.iter().filter_map(|(configuration, ..)| {
        let annotations = configuration.metadata.annotations.as_ref()?;
        annotations.get("cert-manager.io/inject-ca-from")?.split_once('/')
    });
    let certificate = certificates.next();
    match certificate {
        Some((namespace, name)) => {
            Fix::inspect(format!("kubectl -n {namespace} describe certificate {name}"))
                .with_note("cert-manager makes the certificate and writes the bundle.")
        }
        None => fixes::set_value(installation, "--set-file admissionWebhooks.caBundle=CA.crt")
            .unwrap_or_else(|| {
                Fix::advice(
                    "Another program makes the certificate: renew it, and write its CA to `caBundle`.",
                )
            }),
    }
}

pub(super) fn expires(facts: &Facts) -> CheckResult {
    let (installation, own) = own(facts)?;
    let now = *known(&facts.now)?;
    let mut findings = Vec::new();
    for (configuration, _, webhook) in &own {
        let bundle = webhook.client_config.ca_bundle.as_ref();
        let bundle = bundle.map_or(&[][..], |bundle| &bundle.0);
        let ends = Pem::iter_from_buffer(bundle).filter_map(|pem| {
            let end = pem.ok()?.parse_x509().ok()?.validity().not_after.timestamp();
            Timestamp::from_second(end).ok()
        });
        let Some(end) = ends.max().filter(|end| end.duration_since(now) < RENEWAL_OVERDUE) else {
            continue;
        };
        let fix = match installation.webhook_secret() {
            Some(secret) => Fix::run(format!(
                "kubectl -n {} delete secret {secret}",
                installation.namespace
            )),
            None => renew_bundle(installation, &own),
        };
        let actual = format!("the last CA certificate ends at {end:.0}");
        findings.push(Finding::new(object(configuration, webhook), actual, fix));
    }
    Ok(findings)
}

pub(super) fn orphaned(facts: &Facts) -> CheckResult {
    let mut findings = Vec::new();
    for configuration in known(&facts.webhooks)? {
        // That of an installation which exists is misdirected.
        if facts
            .installation
            .as_ref()
            .is_ok_and(|installation| is_own(installation, configuration))
        {
            continue;
        }
        let mut gone = None;
        for service in configuration.services() {
            if facts.namespace(&service.namespace)?.is_none() {
                gone = Some(&service.namespace);
            }
        }
        let Some(namespace) = gone else { continue };
        let (kind, name) = (configuration.kind, configuration.name());
        let fix = if configuration.has_others {
            Fix::inspect(format!("kubectl get {} {name} -o yaml", kind.to_lowercase()))
                .with_note("It has webhooks for other objects too: remove only those for IPUJobs.")
        } else {
            Fix::run(format!("kubectl delete {} {name}", kind.to_lowercase()))
        };
        let actual = format!("leads to namespace {namespace}, which does not exist");
        findings.push(Finding::new(format!("{kind} {name}"), actual, fix));
    }
    Ok(findings)
}
