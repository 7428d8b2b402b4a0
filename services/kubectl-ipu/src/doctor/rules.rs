//! The table of faults, in the order of a diagnosis: a fault of an earlier row explains those of later ones.

mod controllers;
mod installation;
mod jobs;
mod ledger;
mod webhooks;

use super::finding::Rule;

pub(super) const RULES: &[Rule] = &[
    Rule {
        code: "CrdAbsent",
        condition: "The cluster has no CRD of IPUJobs.",
        effect: "No job can be submitted, and the operator is not ready.",
        remedy: "The operator creates the CRD, unless `--maintain-crd=false` is set. Apply it, and read the log of \
                 the operator for the reason.",
        check: installation::crd_absent,
    },
    Rule {
        code: "CrdOlder",
        condition: "The CRD is older than the operator, or that of Graphcore's charts.",
        effect: "The API server drops fields of jobs that the operator supports.",
        remedy: "Apply the CRD of the operator's version.",
        check: installation::crd_older,
    },
    Rule {
        code: "OperatorAbsent",
        condition: "No namespace has an operator.",
        effect: "No job is reconciled. While webhooks exist, no job can be submitted.",
        remedy: "Install the operator, or restore its release.",
        check: installation::operator_absent,
    },
    Rule {
        code: "PodsLeft",
        condition: "Pods of jobs are being deleted, and no operator is there to remove its finalizer from them.",
        effect: "The Pods, and their namespace if it is being deleted, stay for ever.",
        remedy: "Restore the operator: it removes the finalizer and releases the IPUs. If the installation is gone \
                 for good, remove the finalizer from the Pods.",
        check: jobs::pods_left,
    },
    Rule {
        code: "OperatorNotReady",
        condition: "The Deployment of the operator has too few ready replicas.",
        effect: "Webhooks may not respond, so no job can be submitted.",
        remedy: "Read the Events and logs of its Pods; `/readyz` names the condition that it waits for.",
        check: installation::operator_not_ready,
    },
    Rule {
        code: "NoLeader",
        condition: "No operator holds the Lease of the leader election.",
        effect: "No job is reconciled: jobs stay in their phase.",
        remedy: "Read the log of the operator. It cannot renew the Lease, or does not run.",
        check: installation::no_leader,
    },
    Rule {
        code: "ProxyNotReady",
        condition: "The Deployment of the proxy is absent or has too few ready replicas.",
        effect: "No partition is created or released: jobs wait.",
        remedy: "Read the Events and logs of its Pods. A proxy waits for its certificate, which the operator makes.",
        check: installation::proxy_not_ready,
    },
    Rule {
        code: "ProxyUnreachable",
        condition: "The proxy is ready, and the API server cannot reach it by the Service that the operator uses.",
        effect: "No partition is created or released: jobs wait.",
        remedy: "Correct selector and port of the Service, or the network policies of the proxy.",
        check: installation::proxy_unreachable,
    },
    Rule {
        code: "PermissionMissing",
        condition: "The account of operator or proxy lacks a right that it needs.",
        effect: "The operation fails with the status 403, and jobs wait or end.",
        remedy: "Apply the roles of the installed version again. `kubectl auth can-i` with `--as` shows whether the \
                 account has a right. A namespace that is being deleted takes no RoleBinding: bind the role in the \
                 cluster until the namespace is gone.",
        check: installation::permission_missing,
    },
    Rule {
        code: "InstallationsOverlap",
        condition: "Two operators reconcile the jobs of one namespace.",
        effect: "Both act on each job: each partition is requested twice, from two ledgers.",
        remedy: "Give them different namespaces (`watchNamespaces`), or delete the jobs of one and uninstall it.",
        check: installation::overlap,
    },
    Rule {
        code: "WebhookAbsent",
        condition: "A webhook configuration of the installation is absent.",
        effect: "Jobs get no defaults, or are not validated.",
        remedy: "Apply the webhooks of the manifests, or the chart, of the installed version again.",
        check: webhooks::absent,
    },
    Rule {
        code: "WebhookMisdirected",
        condition: "A webhook leads to another Service, port or path than that of the operator.",
        effect: "No job can be submitted.",
        remedy: "Direct the webhook to the Service of the operator.",
        check: webhooks::misdirected,
    },
    Rule {
        code: "WebhookUnreachable",
        condition: "The operator is ready, and the API server cannot call its webhooks for a job that it does not \
                    store.",
        effect: "No job can be submitted.",
        remedy: "Correct selector and port of the Service, the `caBundle`, or the network policies of the operator. \
                 If the operator makes the certificate, its start writes the bundle.",
        check: webhooks::unreachable,
    },
    Rule {
        code: "WebhookCertificateExpires",
        condition: "All CA certificates in a `caBundle` end within 15 days.",
        effect: "The certificate has not been renewed in time. After the end, no job can be submitted.",
        remedy: "If the operator makes the certificate, delete its Secret: the operator makes a new one. If another \
                 program makes it, renew it there, and keep the Secret.",
        check: webhooks::expires,
    },
    Rule {
        code: "WebhookOrphaned",
        condition: "A webhook for IPUJobs leads to a Service in a namespace that does not exist.",
        effect: "No job can be submitted in the namespaces that it selects.",
        remedy: "Delete the configuration: its installation was removed with its namespace.",
        check: webhooks::orphaned,
    },
    Rule {
        code: "ControllerListInvalid",
        condition: "The list of V-IPU controllers is absent or empty, or does not have the format \
                    `HOST[:PORT][:KEY=VALUE],…`.",
        effect: "A new proxy has no controller, and all jobs wait. A running proxy keeps its last list.",
        remedy: "Write the list. The proxy uses an edit within a minute.",
        check: controllers::list_invalid,
    },
    Rule {
        code: "ControllerUnreachable",
        condition: "The proxy cannot reach a V-IPU controller.",
        effect: "Its IPUs are unavailable, and its partitions are not released.",
        remedy: "Check host and port, name resolution, and the network policies of the proxy. If the connection or a \
                 certificate is refused, give the proxy the certificates of the controller \
                 (`--controllers-secrets`, the chart value `vipuProxy.controllersSecrets`).",
        check: controllers::unreachable,
    },
    Rule {
        code: "ControllerWithoutNode",
        condition: "No node with the label of a V-IPU controller is ready and takes Pods.",
        effect: "Workers with a partition of this controller stay Pending.",
        remedy: "Uncordon or repair a labelled node. Without one, label the nodes that reach the IPUs.",
        check: controllers::without_node,
    },
    Rule {
        code: "RdmaUnavailable",
        condition: "A node with the label of a V-IPU controller has an RDMA resource with nothing allocatable.",
        effect: "Workers that request the resource stay Pending.",
        remedy: "Check the RDMA device plugin of the node and its configuration.",
        check: controllers::rdma_unavailable,
    },
    Rule {
        code: "LedgerNearlyFull",
        condition: "The ledger uses more than 80 % of the 1 MiB that a ConfigMap may have.",
        effect: "New requests are refused with `LedgerFull`.",
        remedy: "Delete finished and waiting jobs of the named namespace, or limit its queue.",
        check: ledger::nearly_full,
    },
    Rule {
        code: "PartitionsQuarantined",
        condition: "A partition exists whose owner is not known.",
        effect: "Its IPUs are not used.",
        remedy: "A Slurm job, another cluster, another installation or processes of a deleted job may use it: a \
                 release takes their IPUs. Doctor names a user that it finds, and never prints a release. The guide \
                 to repair by hand has the checks.",
        check: ledger::quarantined,
    },
    Rule {
        code: "PartitionsLeaked",
        condition: "A partition has belonged to a job that does not exist for more than ten minutes.",
        effect: "Its IPUs are not used.",
        remedy: "Repair the ledger. A partition whose controller is unavailable is released later.",
        check: ledger::leaked,
    },
    Rule {
        code: "PartitionsForeign",
        condition: "A V-IPU controller has a partition that the ledger does not record: a user, Slurm or another \
                    cluster made it.",
        effect: "Its IPUs are not available to jobs until it is removed. The proxy never removes it.",
        remedy: "Ask its user. If no process uses it, remove it with the tools of V-IPU. To reserve IPUs for other \
                 programs, use a V-IPU allocation that the proxy does not use.",
        check: controllers::foreign_partitions,
    },
    Rule {
        code: "NamespaceRestricted",
        condition: "A namespace with jobs enforces the Pod Security level `restricted` or `baseline`, and the \
                    installation uses the host network.",
        effect: "The API server refuses the Pods of its jobs, which use the host network and run privileged.",
        remedy: "Allow the level `privileged`, set `spec.workers.hostNetwork: false` in the jobs, or install with \
                 `worker.hostNetwork=false`.",
        check: jobs::namespace_restricted,
    },
    Rule {
        code: "NamespaceNotWatched",
        condition: "A namespace has jobs, and no operator watches it.",
        effect: "No operator reconciles its jobs: new ones wait without a reason, others keep their IPUs, and none can \
                 be deleted.",
        remedy: "Add the namespace to `watchNamespaces`. To leave it out, delete its jobs first, while an operator \
                 watches it.",
        check: jobs::namespace_not_watched,
    },
    Rule {
        code: "QuotaWithoutLimitRange",
        condition: "A namespace with jobs has a ResourceQuota of CPU or memory for all Pods, and no LimitRange with \
                    defaults of these.",
        effect: "The API server refuses Pods without requests and limits. Launchers have them, workers only if \
                 their template does.",
        remedy: "Create a LimitRange with defaults.",
        check: jobs::quota_without_limit_range,
    },
    Rule {
        code: "LauncherImagePullFailed",
        condition: "A node cannot pull the image of the launcher.",
        effect: "Launchers stay Pending, and their jobs hold IPUs.",
        remedy: "Push the image, or correct its name and the pull secrets.",
        check: jobs::launcher_image,
    },
    Rule {
        code: "PodNetworkFailed",
        condition: "The network of a Pod of a job cannot be set up, such as without its NetworkAttachmentDefinition or \
                    without the CNI plugin.",
        effect: "The Pod stays in `ContainerCreating`, and its job holds IPUs.",
        remedy: "Create the named network, or install the plugin in `/opt/cni/bin` of the node.",
        check: jobs::pod_network_failed,
    },
    Rule {
        code: "MemlockLimitTooLow",
        condition: "The log of the first failure of a job says that the process could not lock memory.",
        effect: "RDMA to the IPUs fails, and the job with it.",
        remedy: "Remove the limit of the container runtime on the node. Without the host network, root needs only the \
                 capability `IPC_LOCK`, which has no effect for other users.",
        check: jobs::memlock,
    },
];

#[cfg(test)]
mod reference {
    use super::RULES;

    const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/doctor.md");

    const INTRODUCTION: &str = "\
<!-- generated by `UPDATE=1 cargo test -p kubectl-ipu reference` -->

# Findings of doctor

`kubectl ipu doctor` checks these rules; see [the guide](../kubectl-ipu.md#doctor). Codes are stable. Each
finding also has the object, its actual state, and the way to fix it:

| Line | JSON: `commandKind` | Content |
|---|---|---|
| `fix` | `fix` | a command that fixes the fault |
| `template` | `template` | the same, with words in capital letters that you replace |
| `inspect` | `inspect` | a command that only reads, because a person must decide or act elsewhere |
| `note` | | a condition of the command, or the replacement of a command |
";

    #[test]
    fn the_reference_of_the_findings_is_up_to_date() {
        let mut page = INTRODUCTION.to_owned();
        for rule in RULES {
            let text = [
                format!("## {}", rule.code),
                rule.condition.to_owned(),
                format!("**Effect:** {}", rule.effect),
                format!("**Fix:** {}", rule.remedy),
            ];
            for paragraph in text {
                page.push_str(&format!("\n{}\n", textwrap::fill(&paragraph, 110)));
            }
        }
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(PATH, &page).unwrap();
        }
        let actual = std::fs::read_to_string(PATH).unwrap_or_default();
        assert_eq!(actual, page, "{PATH} is stale");
    }
}
