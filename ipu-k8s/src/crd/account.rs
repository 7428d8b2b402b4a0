//! ServiceAccounts that are reserved for launchers.

use ipu_core::Violation;
use serde_json::Value;

use super::ipujob::IpuJob;

/// Suffix of the names of the accounts that the operator creates for launchers. The whole suffix is reserved:
/// admission does not know the existing accounts, and the account of a later job may get the name.
const RESERVED_SUFFIX: &str = "-launcher";

impl IpuJob {
    /// Returns a violation for each field of the pod template that names the account of a launcher: with its
    /// token a worker could exec into the workers of another job.
    pub(crate) fn launcher_accounts(&self) -> Vec<Violation> {
        let template = self.spec.workers.as_ref().and_then(|w| w.template.as_ref());
        let spec = template.and_then(|template| template.0.get("spec"));
        // Kubernetes reads the older field if the newer one is empty.
        let fields = ["serviceAccountName", "serviceAccount"];
        let named = fields.iter().filter_map(|field| {
            let name = spec?.get(field).and_then(Value::as_str)?;
            Some((field, name)).filter(|(_, name)| name.ends_with(RESERVED_SUFFIX))
        });
        named
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
}
