//! Operator, proxy, and their rights.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;

use super::super::facts::Facts;
use super::super::finding::{Checked, Finding, Fix, Rule};
use super::{restore, tracker};
use crate::installation::{Installation, Origin};

/// Time after which a Lease without a renewal is free, if it does not say.
const LEASE_SECONDS: i32 = 15;

pub(super) const RULES: &[Rule] = &[
    Rule {
        code: "OperatorAbsent",
        condition: "No namespace has an operator, or none of those that webhooks for IPUJobs lead to.",
        effect: "No job is reconciled. While webhooks exist, no job can be submitted.",
        remedy: "Install the operator. If objects of an installation are left, the command completes them.",
        check: absent,
    },
    Rule {
        code: "OperatorNotReady",
        condition: "The Deployment of the operator has too few ready replicas.",
        effect: "Webhooks may not respond, so no job can be submitted.",
        remedy: "Read the Events and logs of its Pods; `/readyz` names the condition that it waits for.",
        check: operator_not_ready,
    },
    Rule {
        code: "NoLeader",
        condition: "No operator holds the Lease of the leader election.",
        effect: "No job is reconciled: jobs stay in their phase.",
        remedy: "Read the log of the operator. It cannot renew the Lease, or does not run.",
        check: no_leader,
    },
    Rule {
        code: "ProxyNotReady",
        condition: "The Deployment of the proxy is absent or has too few ready replicas.",
        effect: "No partition is created or released: jobs wait.",
        remedy: "Read the Events and logs of its Pods. A proxy waits for its certificate, which the operator makes.",
        check: proxy_not_ready,
    },
    Rule {
        code: "PermissionMissing",
        condition: "The account of operator or proxy lacks a right that it needs.",
        effect: "The operation fails with the status 403, and jobs wait or end.",
        remedy: "Apply the roles of the installed version again. `kubectl auth can-i` with `--as` shows whether the account \
                 has a right. A namespace that is being deleted takes no RoleBinding: bind the role in the cluster until \
                 the namespace is gone.",
        check: rights,
    },
    Rule {
        code: "InstallationsOverlap",
        condition: "Two operators reconcile the jobs of one namespace.",
        effect: "Both act on each job: each partition is requested twice, from two ledgers.",
        remedy: "Give them different namespaces (`watchNamespaces`), or uninstall one without partitions. Doctor prints the \
                 removal of one that no webhook leads to, else of the newer one, if its ledger has no partition.",
        check: overlap,
    },
];

fn absent(facts: &Facts) -> Checked {
    if !facts.trusted_operators()?.is_empty() {
        return Ok(Vec::new());
    }
    let object = "Deployment of the operator";
    let others: Vec<_> = facts
        .operators
        .get()?
        .iter()
        .filter_map(|one| one.namespace())
        .collect();
    if !others.is_empty() {
        let namespaces: Vec<_> = facts.webhook_namespaces().into_iter().collect();
        let (namespaces, others) = (namespaces.join(", "), others.join(", "));
        let actual =
            format!("absent in {namespaces}, which webhooks for IPUJobs lead to; others are in {others}");
        let fix = Fix::advice(format!(
            "Users who may create Deployments can imitate an operator. If yours is in {others}, examine it by \
             `--operator-namespace`: the webhooks are misdirected. Otherwise, restore it in {namespaces}."
        ));
        return Ok(vec![Finding::new(object, actual, "one there", fix)]);
    }
    let fix = restore::operator(facts).unwrap_or_else(|reason| {
        Fix::advice(format!(
            "Whether objects of an installation are left is not known: {reason}"
        ))
    });
    Ok(vec![Finding::new(object, "absent", "one in some namespace", fix)])
}

/// Returns ready and requested replicas.
fn replicas(deployment: &Deployment) -> (i32, i32) {
    let requested = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    let ready = deployment
        .status
        .as_ref()
        .and_then(|status| status.ready_replicas)
        .unwrap_or(0);
    (ready, requested)
}

fn not_ready(installation: &Installation, deployment: &Deployment) -> Vec<Finding> {
    let (ready, requested) = replicas(deployment);
    if ready >= requested.max(1) {
        return Vec::new();
    }
    let Installation { namespace, .. } = installation;
    let name = deployment.name_any();
    let fix = if requested == 0 {
        Fix::run(format!(
            "kubectl -n {namespace} scale deployment/{name} --replicas=1"
        ))
    } else {
        Fix::inspect(format!(
            "kubectl -n {namespace} describe pods --selector {}",
            selector(deployment)
        ))
    };
    vec![Finding::new(
        format!("Deployment {namespace}/{name}"),
        format!("{ready} of {requested} replicas are ready"),
        format!("{} ready", requested.max(1)),
        fix,
    )]
}

fn selector(deployment: &Deployment) -> String {
    let labels = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.selector.match_labels.as_ref());
    let pairs = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={value}"));
    pairs.collect::<Vec<_>>().join(",")
}

fn operator_not_ready(facts: &Facts) -> Checked {
    let installation = facts.installation.get()?;
    let operator = facts.operators.get()?.iter().find(|operator| {
        operator.namespace().as_ref() == Some(&installation.namespace)
            && operator.name_any() == installation.operator
    });
    Ok(operator
        .map(|operator| not_ready(installation, operator))
        .unwrap_or_default())
}

fn proxy_not_ready(facts: &Facts) -> Checked {
    let installation = facts.installation.get()?;
    let Installation { namespace, proxy, .. } = installation;
    Ok(match facts.proxy.get()? {
        Some(deployment) => not_ready(installation, deployment),
        None => vec![Finding::new(
            format!("Deployment {namespace}/{proxy}"),
            "absent",
            "one in the namespace of the operator",
            restore::proxy(installation),
        )],
    })
}

fn no_leader(facts: &Facts) -> Checked {
    let installation = facts.installation.get()?;
    let now = *facts.api_time.get()?;
    let Installation {
        namespace,
        operator,
        lease,
        ..
    } = installation;
    let spec = facts.lease.get()?.as_ref().and_then(|lease| lease.spec.as_ref());
    let holder = spec
        .and_then(|spec| spec.holder_identity.as_deref())
        .filter(|holder| !holder.is_empty());
    let renewed = spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
    let seconds = spec
        .and_then(|spec| spec.lease_duration_seconds)
        .unwrap_or(LEASE_SECONDS);
    // The clock of the operator may differ a little.
    let allowed = SignedDuration::from_secs(i64::from(seconds.max(LEASE_SECONDS)));
    let actual = match (holder, renewed) {
        (Some(_), Some(renewed)) if now.duration_since(renewed) <= allowed => return Ok(Vec::new()),
        (Some(holder), Some(renewed)) => format!("held by {holder}, last renewed at {renewed:.0}"),
        (None, _) if facts.lease.get()?.is_none() => "absent".into(),
        _ => "held by no operator".into(),
    };
    Ok(vec![Finding::new(
        format!("Lease {namespace}/{lease}"),
        actual,
        format!("renewed by an operator within {} s", allowed.as_secs()),
        Fix::inspect(format!("kubectl -n {namespace} logs deployment/{operator}")),
    )])
}

/// Returns one finding for each account and scope: a deleted role takes many rights at once.
fn rights(facts: &Facts) -> Checked {
    let missing = facts.missing_permissions.get()?;
    let installation = facts.installation.get()?;
    let mut by_scope = BTreeMap::<(&str, Option<&str>), Vec<String>>::new();
    for right in missing {
        let scope = (right.account.as_str(), right.namespace.as_deref());
        let right = format!("{} {}", right.verb, right.resource);
        by_scope.entry(scope).or_default().push(right);
    }
    let all = facts.namespaces.get().ok();
    let state = |name: &str| {
        let mut all = all?.iter();
        Some(all.find(|namespace| namespace.metadata.name.as_deref() == Some(name)))
    };
    // A namespace that is gone has no jobs, and its rights went with it.
    by_scope.retain(|(_, namespace), _| namespace.and_then(state).is_none_or(|state| state.is_some()));
    let finding = |((account, namespace), rights): ((&str, Option<&str>), Vec<String>)| {
        let is_terminating = namespace
            .and_then(state)
            .flatten()
            .is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some());
        // The proxy reads all namespaces.
        let name = account.rsplit(':').next().unwrap_or_default();
        let is_of_jobs = namespace.is_some_and(|namespace| {
            *namespace != installation.namespace && installation.watch_namespaces.contains(namespace)
        });
        // An imitated operator could choose the role.
        let is_trusted = facts
            .webhook_namespaces()
            .contains(installation.namespace.as_str());
        let fix = if is_terminating && is_of_jobs && is_trusted && name == installation.operator_account {
            restore::rights_of_terminating(installation)
        } else {
            restore::rights(installation)
        };
        let namespace = namespace.map(|namespace| format!(" in {namespace}"));
        Finding::new(
            format!("account {account}"),
            format!("may not {}{}", rights.join(", "), namespace.unwrap_or_default()),
            "the rights of the shipped roles",
            fix,
        )
    };
    Ok(by_scope.into_iter().map(finding).collect())
}

/// Returns the name of the ledger of an installation, and the number of its partitions.
fn partitions<'a>(
    facts: &'a Facts,
    installation: &Installation,
) -> Result<(&'a str, Result<usize, String>), String> {
    let examined = facts.installation.get()?;
    let (found, ledger) = if examined.is_same(installation) {
        (examined, &facts.tracker)
    } else {
        let mut others = facts.others.get()?.iter();
        let found = others.find(|(other, _)| other.is_same(installation));
        let (found, ledger) = found.ok_or("the installation is not read")?;
        (found, ledger)
    };
    let count = ledger.get();
    Ok((
        found.ledger()?,
        count.map(|ledger| ledger.as_ref().map_or(0, tracker::count)),
    ))
}

/// Returns the command that removes an operator, with the webhooks that lead to its namespace. An operator
/// whose ledger has partitions stays: without it, they would leak.
///
/// Helm deletes the objects that the Secret of a release names. Users of a namespace can write such a Secret,
/// so only webhooks that lead there make a release trusted.
fn uninstall(facts: &Facts, installation: &Installation) -> Result<Fix, String> {
    const NOTE: &str = "Which one stays is your decision.";
    let Installation {
        namespace, operator, ..
    } = installation;
    let partitions = partitions(facts, installation);
    let unsafe_reason = match &partitions {
        Ok((_, Ok(0))) => None,
        Ok((_, Ok(count))) => Some(format!("has partitions: {count}")),
        Ok((_, Err(reason))) | Err(reason) => Some(format!("is not known: {reason}")),
    };
    if let Some(reason) = unsafe_reason {
        let command = match partitions {
            Ok((ledger, _)) => format!("kubectl -n {namespace} get configmap {ledger} -o yaml"),
            Err(_) => format!("kubectl -n {namespace} get configmaps"),
        };
        return Ok(Fix::inspect(command).with_note(format!(
            "The ledger of {namespace}/{operator} {reason}. Give the installations different `watchNamespaces`, or \
             delete the jobs of one before you uninstall it.",
        )));
    }
    let is_trusted = facts.webhook_namespaces().contains(namespace.as_str());
    if let Origin::Release(release) = &installation.origin
        && is_trusted
    {
        let command = format!("helm uninstall {release} --namespace {namespace}");
        return Ok(Fix::run(command).with_note(NOTE));
    }
    let mut command = format!("kubectl -n {namespace} delete deployment {operator}");
    for configuration in facts.mutating.get()?.iter().chain(facts.validating.get()?) {
        if configuration.service_namespace() == Some(namespace) && !configuration.has_others {
            let (kind, name) = (configuration.kind.to_lowercase(), &configuration.name);
            command.push_str(&format!(" && kubectl delete {kind} {name}"));
        }
    }
    let note = if is_trusted {
        NOTE.to_owned()
    } else {
        format!(
            "{NOTE} No webhook leads to {namespace}: its users may imitate an operator. Run no `helm uninstall` there."
        )
    };
    Ok(Fix::run(command).with_note(note))
}

/// Returns the namespaces that both watch, if there are any.
fn shared_namespaces(first: &Installation, second: &Installation) -> Option<String> {
    let (first, second) = (&first.watch_namespaces, &second.watch_namespaces);
    let shared: BTreeSet<String> = match (first.is_empty(), second.is_empty()) {
        (true, true) => return Some("all namespaces".into()),
        (true, false) => second.clone(),
        (false, true) => first.clone(),
        (false, false) => first.intersection(second).cloned().collect(),
    };
    (!shared.is_empty()).then(|| shared.into_iter().collect::<Vec<_>>().join(", "))
}

fn overlap(facts: &Facts) -> Checked {
    let mut operators: Vec<_> = facts.operators.get()?.iter().collect();
    // One that no webhook leads to, then the newer one, is the more likely mistake.
    let trusted = facts.webhook_namespaces();
    operators.sort_by_key(|operator| {
        let namespace = operator.metadata.namespace.as_deref();
        let is_trusted = namespace.is_some_and(|namespace| trusted.contains(namespace));
        (!is_trusted, operator.creation_timestamp())
    });
    let all: Vec<Installation> = operators
        .into_iter()
        .filter_map(|operator| Installation::new(operator, None))
        .collect();
    let mut findings = Vec::new();
    for (index, second) in all.iter().enumerate() {
        // One finding for each operator: any user who may create Deployments can imitate many.
        let mut earlier = all[..index].iter();
        let Some((first, namespaces)) =
            earlier.find_map(|first| Some((first, shared_namespaces(first, second)?)))
        else {
            continue;
        };
        findings.push(Finding::new(
            format!("Deployment {}/{}", second.namespace, second.operator),
            format!(
                "it and {}/{} reconcile the jobs of {namespaces}",
                first.namespace, first.operator
            ),
            "one operator for each namespace",
            uninstall(facts, second)?,
        ));
    }
    Ok(findings)
}
