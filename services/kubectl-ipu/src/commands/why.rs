//! `kubectl ipu why`: explains why a job waits, does not start, or has failed. The texts are those of the
//! job's status, of the proxy and of the Pods; each is printed once.

use ipu_core::Reason;
use ipu_k8s::crd::{IpuJobStatus, Time};
use ipu_proxy_client::{OwnerDocument, PartitionDocument};
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::Value;

use super::get::{phase_of, status_of};
use super::pod_problem::problem_of;
use crate::cli::Global;
use crate::context::Context;
use crate::exit_code::{Code, Failure};
use crate::output::{self, printable, render};
use crate::proxy::{self, Access};

/// State of an instance whose request is queued.
const WAITING: &str = "Waiting";

/// All that is known about the state of a job.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation {
    namespace: String,
    name: String,
    status: IpuJobStatus,
    pods: Vec<PodExplanation>,
    /// Queued requests of the job, as the proxy reports them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queue: Vec<PartitionDocument>,
    /// Facts that the caller may not see, each with the reason.
    not_checked: Vec<String>,
}

#[derive(Debug, Serialize)]
struct PodExplanation {
    name: String,
    problem: String,
}

/// Prints the explanation.
pub(crate) async fn why(job: &str, context: &Context, global: &Global) -> Result<Code, Failure> {
    let object = context.job(job).await?;
    let mut explanation = Explanation {
        namespace: context.namespace.clone(),
        name: job.to_owned(),
        status: status_of(&object),
        pods: Vec::new(),
        queue: Vec::new(),
        not_checked: Vec::new(),
    };
    match context.pods(job).await {
        Ok(pods) => {
            let problem = |pod| Some((problem_of(pod)?, pod.name_any()));
            let problems = pods.iter().filter_map(problem);
            explanation.pods = problems
                .map(|(problem, name)| PodExplanation { name, problem })
                .collect();
        }
        Err(failure) => explanation.not_checked.push(failure.chain()),
    }
    if explanation.status.last_message.is_empty() {
        explanation.status.last_message = match object.data.pointer("/spec/managedBy").and_then(Value::as_str)
        {
            Some(controller) => format!("another controller manages the job: {controller}"),
            None => "the operator has not reconciled the job yet: if it stays so for some seconds, use `kubectl ipu doctor`"
                .into(),
        };
    }
    if explanation
        .status
        .instances
        .iter()
        .any(|instance| instance.state == WAITING)
    {
        match queued(context, global, &object.uid().unwrap_or_default()).await {
            Ok(queue) => explanation.queue = queue,
            Err(failure) => {
                let text = format!("position, blockers and expected start: {}", failure.chain());
                explanation.not_checked.push(text);
            }
        }
    }
    output::result(&render(global.output, &explanation, || text(&explanation))?)?;
    Ok(Code::Done)
}

/// Asks the proxy for the queued requests of the job.
async fn queued(context: &Context, global: &Global, uid: &str) -> Result<Vec<PartitionDocument>, Failure> {
    let proxy = proxy::connect(context, global, Access::Read).await?;
    let mut waiting = proxy.client.waiting().await?;
    waiting.retain(|request| request.owner.as_ref().is_some_and(|owner| owner.uid == uid));
    Ok(waiting)
}

/// Lines of text that repeat no sentence of an earlier one.
#[derive(Default)]
struct Lines(Vec<String>);

impl Lines {
    fn add(&mut self, line: &str) {
        self.0.push(printable(line));
    }

    /// Adds a line with a sentence, or without it if an earlier line has it.
    fn add_sentence(&mut self, line: &str, sentence: &str) {
        let sentence = printable(sentence);
        if sentence.is_empty() || self.0.iter().any(|line| line.contains(&sentence)) {
            self.add(line);
        } else {
            self.add(&format!("{line}: {sentence}"));
        }
    }
}

fn text(explanation: &Explanation) -> String {
    let Explanation {
        namespace,
        name,
        status,
        ..
    } = explanation;
    let mut lines = Lines::default();
    lines.add_sentence(
        &format!("{namespace}/{name} is {}", phase_of(status)),
        &status.last_message,
    );
    if let Some(conclusion) = &status.conclusion {
        lines.add_sentence(&format!("Conclusion: {}", coded(conclusion)), &conclusion.message);
    }
    if status.ipus_held > 0 {
        lines.add(&format!("IPUs held: {}", status.ipus_held));
    }
    for instance in &status.instances {
        let line = format!("Instance {} is {}", instance.index, instance.state);
        lines.add_sentence(&line, instance.reason.as_deref().unwrap_or_default());
    }
    for request in &explanation.queue {
        add_request(&mut lines, request);
    }
    for pod in &explanation.pods {
        lines.add_sentence(&format!("Pod {}", pod.name), &pod.problem);
    }
    if let Some(failure) = &status.first_failure {
        let node = failure.node.as_deref().map(|node| format!(" on node {node}"));
        let (kind, node) = (failure.kind.to_lowercase(), node.unwrap_or_default());
        lines.add(&format!(
            "First failure: {kind} {}{node}: {}",
            failure.name, failure.reason
        ));
        for line in failure.log.trim_end().lines() {
            lines.add(&format!("  | {line}"));
        }
    }
    for fact in &explanation.not_checked {
        lines.add(&format!("Not checked: {fact}"));
    }
    lines.0.join("\n") + "\n"
}

/// Adds the position, the reason, the blockers and the expected start of a queued request.
fn add_request(lines: &mut Lines, request: &PartitionDocument) {
    let title = format!("Queue: {} IPUs for instance {}", request.size, request.instance);
    let Some(waiting) = &request.waiting else {
        let reason = request.reason.as_ref();
        lines.add_sentence(&title, reason.map_or("", |reason| &reason.message));
        return;
    };
    lines.add(&format!("{title}, position {}", waiting.position));
    lines.add_sentence(
        &format!("  reason: {}", coded(&waiting.reason)),
        &waiting.reason.message,
    );
    for blocker in &waiting.blockers {
        let owner = blocker.owner.as_ref();
        let owner = owner.map_or_else(|| "no known owner".into(), OwnerDocument::qualified_name);
        let size = blocker.size.map(|size| format!(", {} IPUs", size.get()));
        let until = blocker.until.map(|until| format!(", until {}", Time(until)));
        let (size, until) = (size.unwrap_or_default(), until.unwrap_or_default());
        lines.add(&format!("  blocked by {} of {owner}{size}{until}", blocker.id));
    }
    let endless = waiting.blockers.iter().find(|blocker| blocker.until.is_none());
    lines.add(&match (waiting.earliest_fit, endless) {
        (Some(time), _) => format!("  expected start: {} at the earliest", Time(time)),
        (None, Some(blocker)) => format!(
            "  expected start: not known, {} has no maximum run time",
            blocker.id
        ),
        // Such as cordoned hardware, or a controller that does not respond.
        (None, None) if waiting.reason.code.is_permanent() => "  expected start: never".into(),
        (None, None) => "  expected start: not known".into(),
    });
}

/// Returns the code of a reason with its numbers.
fn coded(reason: &Reason) -> String {
    let numbers = reason
        .numbers
        .iter()
        .map(|(name, number)| format!("{name}={number}"));
    let numbers: Vec<_> = numbers.collect();
    if numbers.is_empty() {
        reason.code.to_string()
    } else {
        format!("{} ({})", reason.code, numbers.join(", "))
    }
}
