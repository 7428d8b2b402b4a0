//! Commands that restore shipped objects.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::finding::Fix;
use crate::installation::{Installation, container, release_of, version_of};

/// Version of this program, and of the chart that it is delivered with.
const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns the command that creates absent objects of the installation again.
pub(super) fn restore(installation: &Installation) -> Fix {
    set_value(installation, "").unwrap_or_else(|| {
        Fix::advice(format!(
            "Apply your manifests of the installation again, those of version {} with your changes.",
            installation.version().unwrap_or("unknown")
        ))
    })
}

/// Returns the command that upgrades the release of the installation with this option; none without Helm.
pub(super) fn set_value(installation: &Installation, option: &str) -> Option<Fix> {
    upgrade(&installation.operator, option)
}

/// Returns the command that upgrades the release of `deployment`, as the Helm that applied it does; none
/// without Helm.
pub(super) fn upgrade(deployment: &Deployment, option: &str) -> Option<Fix> {
    let (release, namespace) = (release_of(deployment)?, deployment.namespace()?);
    let managers = deployment.metadata.managed_fields.iter().flatten();
    // Helm 4 applies on the server, and refuses to take back fields that kubectl has changed.
    let by_server = managers.into_iter().any(|manager| {
        manager.manager.as_deref() == Some("helm") && manager.operation.as_deref() == Some("Apply")
    });
    let force = if by_server { " --force-conflicts" } else { "" };
    let command = |chart: &str| {
        let command = format!(
            "helm upgrade {release} {chart} --namespace {namespace} --reset-then-reuse-values{force} {option}"
        );
        command.trim_end().to_owned()
    };
    let version = version_of(deployment).unwrap_or("unknown");
    if version != OWN_VERSION {
        return Some(Fix::advice(format!(
            "Run `{}` with the chart of version {version}: this program has that of version {OWN_VERSION}.",
            command("CHART")
        )));
    }
    let command = command("deploy/helm/ipu-operator");
    let fix = if option.is_empty() {
        Fix::run(command)
    } else {
        Fix::template(command)
    };
    Some(if by_server {
        fix.with_note(
            "It takes back changes that kubectl made to objects of the release: set them as values.",
        )
    } else {
        fix
    })
}

/// Returns the fault of a Service that leads to `port` of a Deployment, and its fix; none if it seems right.
/// `called` is the number of the port of the Service.
pub(super) fn service_fault(
    installation: &Installation,
    service: Option<&Service>,
    deployment: &Deployment,
    (called, port): (i32, &str),
) -> Option<(String, Fix)> {
    let Some(service) = service else {
        return Some(("its Service is absent".into(), restore(installation)));
    };
    let spec = service.spec.as_ref()?;
    let template = deployment.spec.as_ref()?;
    let labels = template.template.metadata.as_ref()?.labels.as_ref()?;
    let patch = |path: &str, value: Value| {
        let patch = json!([{"op": "replace", "path": path, "value": value}]);
        Fix::run(format!(
            "kubectl -n {} patch service {} --type=json -p '{patch}'",
            installation.namespace,
            service.name_any()
        ))
    };
    let mut selector = spec.selector.iter().flatten();
    if let Some((key, value)) = selector.find(|(key, value)| labels.get(*key) != Some(*value)) {
        let actual = format!("its Service selects {key}={value}, which the Pods do not have");
        return Some((
            actual,
            patch("/spec/selector", json!(template.selector.match_labels)),
        ));
    }
    let mut ports = spec.ports.iter().flatten().enumerate();
    let Some((index, found)) = ports.find(|(_, found)| found.port == called) else {
        return Some((format!("its Service has no port {called}"), restore(installation)));
    };
    let own = container(deployment)?.ports.iter().flatten();
    let mut own = own.filter(|own| own.name.as_deref() == Some(port));
    let number = own.next().map(|own| own.container_port);
    let target = match &found.target_port {
        Some(IntOrString::String(name)) if name == port => return None,
        Some(IntOrString::Int(target)) if Some(*target) == number => return None,
        Some(IntOrString::String(name)) => name.clone(),
        Some(IntOrString::Int(target)) => target.to_string(),
        None => called.to_string(),
    };
    let actual = format!("its Service leads to port {target} of the Pods, and they listen on {port}");
    Some((
        actual,
        patch(&format!("/spec/ports/{index}/targetPort"), json!(port)),
    ))
}
