//! The chart with Kueue, as `docs/kueue.md` sets it up, and the uninstallation of either while jobs run.

use std::ops::Deref;

use ipu_test_cluster::{Cluster, Tool, find_tools, install_kueue};

use super::installation::CONTROLLERS;
use crate::installation::{Product, prepared_privately, repository, wait_until};

/// Namespace of the page.
const NAMESPACE: &str = "team-a";

#[test]
fn nothing_hangs_when_the_operator_or_kueue_is_uninstalled_while_jobs_run() {
    let name = "nothing_hangs_when_the_operator_or_kueue_is_uninstalled_while_jobs_run";
    let Some(tools) = find_tools(name, &[&Tool::KUEUE[..], &Tool::HELM].concat()) else {
        return;
    };
    let Some(product) = prepared_privately(name) else {
        return;
    };
    install_kueue(&product.cluster, &tools).unwrap();
    product.kubectl(&["create", "namespace", NAMESPACE]);
    product.kubectl(&["label", "namespace", NAMESPACE, "queues=kueue"]);
    let chart = repository("deploy/helm/ipu-operator");
    let install = ["gc", &chart, "--set", CONTROLLERS, "--set", "kueue.enabled=true"];
    product.install_chart_with(Tool::Helm4, &install);
    let [queues, ipujob, job] = blocks();
    product.apply_text(&queues);
    let used = ["admissioncheck/ipu-partition", "clusterqueue/ipus"];
    product.kubectl(&[&["wait", "--for=condition=Active"], &used[..]].concat());

    product.run(&ipujob, &job);
    product.uninstall_chart(Tool::Helm4, "gc");
    product.in_queues(&["delete", "jobs,ipujobs", "--all", "--wait=false"]);
    // The next operator ends them.
    product.install_chart_with(Tool::Helm4, &install);
    product.wait_until_nothing_is_left("pods,jobs,ipujobs,ipupartitions,workloads");

    product.run(&ipujob, &job);
    let uninstall = ["uninstall", "kueue", "--namespace", "kueue"];
    product.cluster.helm(Tool::Helm4, &uninstall).unwrap();
    // Its Workload has no finalizer.
    product.wait_for_phase(NAMESPACE, "inference", "Suspended");
    product.in_queues(&["delete", "jobs,ipujobs,ipupartitions", "--all", "--timeout=120s"]);
    product.wait_until_nothing_is_left("pods,jobs,ipujobs,ipupartitions");
}

/// Returns the examples of the page: the queues, the label of an IPUJob, and a Job.
fn blocks() -> [String; 3] {
    let page = std::fs::read_to_string(repository("docs/kueue.md")).unwrap();
    let blocks = page.split("```yaml\n").skip(1);
    let text = |block: &str| {
        let (block, _) = block.split_once("```").unwrap();
        // The first is a part of a list.
        let indent = block.len() - block.trim_start().len();
        let lines = block.lines().map(|line| line.get(indent..).unwrap_or_default());
        lines.flat_map(|line| [line, "\n"]).collect()
    };
    blocks.map(text).collect::<Vec<_>>().try_into().unwrap()
}

impl<C: Deref<Target = Cluster>> Product<C> {
    fn in_queues(&self, arguments: &[&str]) -> String {
        self.kubectl(&[&["-n", NAMESPACE], arguments].concat())
    }

    /// Runs an IPUJob with this metadata, and a Job.
    fn run(&self, metadata: &str, job: &str) {
        self.submit(NAMESPACE, "inference", |text| {
            text.replace("mpi-example:1", "local/busybox:1").replace(
                "metadata:\n  name: inference\n",
                &format!("{metadata}  name: inference\n"),
            )
        });
        let command = "local/busybox:1\n        command: [sleep, \"30000\"]";
        self.apply_text(&job.replace("registry.example.com/train:1", command));
        self.wait_for_phase(NAMESPACE, "inference", "Running");
        let ready = "--for=jsonpath={.status.ready}=1";
        self.in_queues(&["wait", "job/train", ready, "--timeout=300s"]);
    }

    fn wait_until_nothing_is_left(&self, kinds: &str) {
        wait_until("nothing is left of the jobs", || {
            let objects = self.in_queues(&["get", kinds, "-o", "name"]);
            let (ledger, partitions) = (self.ledger(), self.controller_partitions());
            if objects.is_empty() && ledger.is_empty() && !partitions.contains("\"p-") {
                Ok(())
            } else {
                Err(objects + &ledger + &partitions)
            }
        });
    }
}
