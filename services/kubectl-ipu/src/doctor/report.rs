//! The report of doctor.

use std::collections::BTreeMap;

use serde::Serialize;

use super::collect::collect;
use super::facts::Facts;
use super::finding::{CommandKind, Finding, Fix, Rule};
use super::rules::RULES;
use crate::cli::Global;
use crate::context::Context;
use crate::exit_code::{Code, Failure};
use crate::output::{self, render};

/// Page of all findings.
const PAGE_URL: &str = "https://github.com/ipu-sdk/ipu-sdk/blob/main/docs/reference/doctor.md";

/// Results of all rules.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) findings: Vec<CodedFinding>,
    pub(super) not_checked: Vec<UncheckedRule>,
    /// Number of rules that found nothing.
    pub(super) passed: usize,
}

/// A finding with its rule and its page.
#[derive(Debug, Serialize)]
pub(super) struct CodedFinding {
    #[serde(flatten)]
    pub(super) rule: &'static Rule,
    #[serde(flatten)]
    pub(super) finding: Finding,
    pub(super) page: String,
}

/// A rule that was not checked.
#[derive(Debug, Serialize)]
pub(super) struct UncheckedRule {
    #[serde(flatten)]
    pub(super) rule: &'static Rule,
    pub(super) reason: String,
}

/// Collects the facts, checks all rules, and prints the report. Without an API server there is no report.
pub(crate) async fn run(context: &Context, global: &Global) -> Result<Code, Failure> {
    context.probe().await?;
    let report = check(&collect(context, global).await);
    output::result(&render(global.output, &report, || text(&report))?)?;
    Ok(if !report.findings.is_empty() {
        Code::Unavailable
    } else if !report.not_checked.is_empty() {
        Code::Denied
    } else {
        Code::Done
    })
}

/// Checks all rules.
pub(super) fn check(facts: &Facts) -> Report {
    let mut report = Report {
        findings: Vec::new(),
        not_checked: Vec::new(),
        passed: 0,
    };
    for rule in RULES {
        match (rule.check)(facts) {
            Ok(findings) if findings.is_empty() => report.passed += 1,
            Ok(findings) => report
                .findings
                .extend(findings.into_iter().map(|finding| CodedFinding {
                    rule,
                    finding,
                    page: format!("{PAGE_URL}#{}", rule.code.to_lowercase()),
                })),
            Err(reason) => report.not_checked.push(UncheckedRule { rule, reason }),
        }
    }
    report
}

fn text(report: &Report) -> String {
    let mut lines = Vec::new();
    for CodedFinding { rule, finding, page } in &report.findings {
        lines.extend([
            format!("{}: {}", rule.code, finding.object),
            format!("  finding:  {}", finding.actual),
            format!("  effect:   {}", rule.effect),
            format!("  remedy:   {}", rule.remedy),
        ]);
        lines.extend(fix_lines(&finding.fix));
        lines.extend([format!("  page:     {page}"), String::new()]);
    }
    // One missing fact may hide several rules.
    let mut reasons = BTreeMap::<&str, Vec<&str>>::new();
    for UncheckedRule { rule, reason } in &report.not_checked {
        reasons.entry(reason).or_default().push(rule.code);
    }
    for (reason, codes) in reasons {
        lines.push(output::printable(&format!(
            "not checked: {}: {reason}",
            codes.join(", ")
        )));
    }
    lines.push(format!(
        "{}, {} not checked, {} passed",
        counted(report.findings.len(), "finding"),
        counted(report.not_checked.len(), "rule"),
        report.passed
    ));
    lines.join("\n") + "\n"
}

fn fix_lines(fix: &Fix) -> impl Iterator<Item = String> {
    let label = match fix.command_kind {
        Some(CommandKind::Template) => "template",
        Some(CommandKind::Inspect) => "inspect",
        Some(CommandKind::Fix) | None => "fix",
    };
    let command = fix
        .command
        .iter()
        .map(move |command| format!("  {:<9} {command}", format!("{label}:")));
    let note = fix.note.iter().map(|note| format!("  note:     {note}"));
    command.chain(note)
}

/// Returns a number with its noun.
fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}
