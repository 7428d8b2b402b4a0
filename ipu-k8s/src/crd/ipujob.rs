//! The IPUJob: its constants, its CRD, and its conversion to a job of the core.

use std::sync::LazyLock;

use ipu_core::job::{ErrorList, Limits, ParsedJob, RawJob, RawMetadata, Violation, Warning};
use kube::CustomResourceExt as _;
use serde_json::Value;

use super::host::no_containers;
use super::schema;
use super::spec::IpuJob;

/// Suffix of the names of the accounts that the operator creates for launchers. The whole suffix is reserved:
/// admission does not know the existing accounts, and the account of a later job may get the name.
const LAUNCHER_ACCOUNT_SUFFIX: &str = "-launcher";

/// Path of the source of a variable in the schema of a Pod template.
const ENV_VAR_SOURCE_PATH: &str =
    "/properties/spec/properties/containers/items/properties/env/items/properties/valueFrom";

/// Path of the resources of a container in that schema.
const RESOURCES_PATH: &str = "/properties/spec/properties/containers/items/properties/resources";

impl IpuJob {
    /// The group and version of the resource.
    pub const API_VERSION: &'static str = "graphcore.ai/v1alpha1";
    /// The kind of the resource.
    pub const KIND: &'static str = "IPUJob";
    /// Finalizer that keeps a job until its resources are released (V-IPU guide §6.6).
    pub const FINALIZER: &'static str = "ipu.finalizers.graphcore.ai";
    /// Finalizer of workers and launchers. It keeps a Pod until its outcome is recorded in the status of its
    /// job, and its name until no launcher has rights over it.
    pub const POD_FINALIZER: &'static str = "graphcore.ai/ipujob-tracking";
    /// Label of a job's Pods whose value is the uid of the job.
    pub const UID_LABEL: &'static str = "graphcore.ai/ipujob-uid";
    /// Value of `spec.managedBy` for this project's operator, equivalent to its absence.
    pub const OPERATOR: &'static str = "graphcore.ai/ipu-operator";

    /// Returns the other controller that manages the job, which the operator then ignores. An empty text
    /// means none.
    ///
    /// ```
    /// use ipu_k8s::crd::IpuJob;
    ///
    /// let mut job = IpuJob::default();
    /// job.spec.managed_by = Some(IpuJob::OPERATOR.into());
    /// assert_eq!(job.other_manager(), None);
    /// job.spec.managed_by = Some("kueue.x-k8s.io/multikueue".into());
    /// assert_eq!(job.other_manager(), Some("kueue.x-k8s.io/multikueue"));
    /// ```
    #[must_use]
    pub fn other_manager(&self) -> Option<&str> {
        Self::other_manager_in(self.spec.managed_by.as_deref())
    }

    /// Returns the manager in a `spec.managedBy`, if it is not this project's operator.
    pub(crate) fn other_manager_in(manager: Option<&str>) -> Option<&str> {
        manager.filter(|manager| !manager.is_empty() && *manager != Self::OPERATOR)
    }

    /// Returns whether the job declines the host network of the installation. A job cannot request the host
    /// network if the installation does not use it.
    #[must_use]
    pub fn declines_host_network(&self) -> bool {
        let workers = self.spec.workers.as_ref();
        workers.is_some_and(|workers| workers.host_network == Some(false))
    }

    /// Parses the job with the rules of the core, and with those about the Pod template. The metadata must
    /// have a name and a uid.
    ///
    /// # Errors
    ///
    /// All violations of the rules.
    pub fn parse(&self, limits: &Limits) -> Result<ParsedJob, ErrorList<Violation>> {
        let raw = self.to_raw().map_err(|violation| vec![violation].into());
        let parsed = raw.and_then(|raw| raw.parse(limits));
        let mut warnings = self.ignored_strategy();
        warnings.extend(self.replaced_fields());
        let mut violations = self.launcher_accounts();
        // A stored job can still be changed and deleted.
        let refused = if limits.is_stored() {
            &mut warnings
        } else {
            &mut violations
        };
        refused.extend(self.without_containers());
        refused.extend(self.refused_pods());
        match parsed {
            Ok(mut parsed) if violations.is_empty() => {
                parsed.warnings.extend(warnings);
                Ok(parsed)
            }
            parsed => {
                let all = parsed.err().into_iter().flatten().chain(violations);
                Err(all.collect::<Vec<_>>().into())
            }
        }
    }

    fn ignored_strategy(&self) -> Vec<Warning> {
        let strategy = self
            .spec
            .workers
            .as_ref()
            .and_then(|workers| workers.strategy.as_ref());
        let warning = strategy.map(|strategy| {
            Warning::new(
                "spec.workers.strategy",
                Some(strategy.kind.as_deref().unwrap_or("{…}")),
                "is ignored: the workers of an attempt are replaced together, on a partition that was reset",
                "remove it",
            )
        });
        Vec::from_iter(warning)
    }

    /// Returns the job in the form of the core, without the fields that only Kubernetes uses. A field that
    /// the core lacks is an error, which the tests of this crate would show.
    fn to_raw(&self) -> Result<RawJob, Violation> {
        let mut spec = self.spec.clone();
        (spec.managed_by, spec.headless_service) = (None, None);
        if let Some(workers) = &mut spec.workers {
            (workers.host_network, workers.strategy, workers.template) = (None, None, None);
        }
        if let Some(launcher) = &mut spec.launcher {
            launcher.env.retain(|variable| variable.value_from.is_none());
            launcher.resources = None;
        }
        let raw = serde_json::to_value(&spec).and_then(serde_json::from_value);
        let metadata = &self.metadata;
        Ok(RawJob {
            spec: raw
                .map_err(|error| Violation::new("spec", None, error.to_string(), "report this as a bug"))?,
            metadata: RawMetadata {
                namespace: metadata.namespace.clone(),
                name: metadata.name.clone(),
                generate_name: metadata.generate_name.clone(),
                uid: metadata.uid.clone(),
            },
        })
    }

    /// Returns the `spec` of the Pod template.
    pub(super) fn pod_spec(&self) -> Option<&Value> {
        let template = self.spec.workers.as_ref()?.template.as_ref()?;
        template.0.get("spec")
    }

    /// Returns the violation of a job whose workers have nothing to run: it would hold IPUs and never use
    /// them.
    fn without_containers(&self) -> Option<Violation> {
        match self.pod_spec().and_then(|spec| spec.get("containers")) {
            None | Some(Value::Null) => Some(no_containers(None)),
            Some(Value::Array(items)) if items.is_empty() => Some(no_containers(Some("[]"))),
            // The schema of a Pod refuses values that are not lists.
            Some(_) => None,
        }
    }

    /// Returns a violation for each field of the Pod template that names the account of a launcher: with its
    /// token a worker could exec into the workers of another job.
    fn launcher_accounts(&self) -> Vec<Violation> {
        // Kubernetes reads the older field if the newer one is empty.
        let fields = ["serviceAccountName", "serviceAccount"].into_iter();
        let named = fields.filter_map(|field| Some((field, self.pod_spec()?.get(field)?.as_str()?)));
        named
            .filter(|(_, name)| name.ends_with(LAUNCHER_ACCOUNT_SUFFIX))
            .map(|(field, name)| {
                Violation::new(
                    &format!("spec.workers.template.spec.{field}"),
                    Some(name),
                    "names that end in -launcher are reserved for launchers, whose ServiceAccount may run commands in the workers of their job",
                    "use a ServiceAccount of another name",
                )
            })
            .collect()
    }

    /// Returns the CustomResourceDefinition `ipujobs.graphcore.ai` with this schema of a Pod template, which
    /// has to be structural: without references, and with a type at every level. The caller so chooses the
    /// version of Kubernetes. The version of this repository is `deploy/crd/ipujobs.graphcore.ai.yaml`.
    ///
    /// ```
    /// use ipu_k8s::crd::IpuJob;
    /// use serde_json::json;
    ///
    /// let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    /// let definition = IpuJob::definition(&anything);
    /// assert_eq!(definition["metadata"]["name"], "ipujobs.graphcore.ai");
    /// ```
    #[must_use]
    pub fn definition(pod_template: &Value) -> Value {
        let mut schema = SCHEMA.clone();
        for (path, kubernetes) in [
            ("workers/properties/template", Some(pod_template)),
            (
                "launcher/properties/env/items/properties/valueFrom",
                pod_template.pointer(ENV_VAR_SOURCE_PATH),
            ),
            (
                "launcher/properties/resources",
                pod_template.pointer(RESOURCES_PATH),
            ),
        ] {
            let field = schema.pointer_mut(&format!("/properties/spec/properties/{path}"));
            if let (Some(field), Some(kubernetes)) = (field, kubernetes) {
                let description = field["description"].take();
                *field = kubernetes.clone();
                field["description"] = description;
            }
        }
        schema::definition(&Self::crd(), schema)
    }
}

/// The schema of an IPUJob in the form that the API server stores.
pub(super) static SCHEMA: LazyLock<Value> = LazyLock::new(|| schema::stored_schema(&IpuJob::crd()));
