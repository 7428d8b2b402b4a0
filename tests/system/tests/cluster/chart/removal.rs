//! Objects that remain after an uninstallation, and their removal.

use ipu_test_cluster::Tool;

use crate::installation::{SYSTEM, wait_until};
use crate::running_job::{NAMESPACE, RunningJob};

/// The CRD of the IPUJob.
pub(super) const CRD: &str = "customresourcedefinition.apiextensions.k8s.io/ipujobs.graphcore.ai";
/// The CRD of the IPUPartition.
pub(super) const PARTITION_CRD: &str =
    "customresourcedefinition.apiextensions.k8s.io/ipupartitions.graphcore.ai";

impl RunningJob {
    /// Returns the remaining cluster-scoped objects and namespaces of the installation.
    fn remaining_objects(&self) -> Vec<String> {
        let kinds = "validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies,\
                     validatingadmissionpolicybindings,clusterroles,clusterrolebindings,customresourcedefinitions,\
                     namespaces";
        let all = self.product.kubectl(&["get", kinds, "-o", "name"]);
        let belongs_to_installation = |name: &&str| {
            ["ipu-operator", "ipujob", "ipupartition"]
                .iter()
                .any(|part| name.contains(part))
        };
        all.lines()
            .filter(belongs_to_installation)
            .map(str::to_owned)
            .collect()
    }

    /// Waits until exactly these objects remain.
    pub(super) fn wait_until_only_remain(&self, expected: &[&str]) {
        wait_until(&format!("only {expected:?} remain"), || {
            let remaining_objects = self.remaining_objects();
            if remaining_objects == expected {
                Ok(())
            } else {
                Err(format!("{remaining_objects:?}"))
            }
        });
    }

    /// Removes everything while the job exists. Without an operator, nothing removes the job's finalizer:
    /// job and CRD remain.
    pub(super) fn remove_everything(&self, helm: Tool, release: &str) {
        let product = &self.product;
        product.uninstall_chart(helm, release);
        let system = format!("namespace/{SYSTEM}");
        product.kubectl(&["delete", "--wait=false", CRD, PARTITION_CRD, &system]);
        self.wait_until_only_remain(&[CRD]);
        for arguments in [
            &["crd/ipujobs.graphcore.ai"][..],
            &["-n", NAMESPACE, "ipujob/inference"],
        ] {
            let path = "jsonpath={.metadata.deletionTimestamp} {.metadata.finalizers}";
            let output = product.kubectl(&[&["get", "-o", path], arguments].concat());
            assert!(
                output.contains(":") && output.contains("[\""),
                "{arguments:?}: {output}"
            );
        }
        assert!(self.workers().contains(&self.worker), "the worker keeps running");
        assert!(
            self.product.controller_partitions().contains(&self.partition),
            "{}",
            self.product.controller_partitions()
        );
    }

    /// Waits until the job is deleted with all its resources, and then the CRD.
    pub(super) fn wait_until_job_and_crd_are_deleted(&self) {
        wait_until("the CRD is deleted", || {
            let remaining_objects = self.remaining_objects();
            if remaining_objects.iter().any(|name| name == CRD) {
                Err(format!("{remaining_objects:?}"))
            } else {
                Ok(())
            }
        });
        wait_until("the workers are deleted", || {
            let workers = self.workers();
            if workers.is_empty() { Ok(()) } else { Err(workers) }
        });
        wait_until("V-IPU has no partition of the job", || {
            let partitions = self.product.controller_partitions();
            if partitions.contains("p-inference") {
                Err(partitions)
            } else {
                Ok(())
            }
        });
    }
}
