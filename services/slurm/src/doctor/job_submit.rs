//! The script of `JobSubmitPlugins=lua`, and the models of its limits.

use std::path::Path;

use crate::render_command::Report;
use crate::safe_file;

/// The script that slurmctld reads next to `slurm.conf`.
const SCRIPT: &str = "job_submit.lua";
/// The limits that `ipu_slurm.lua` reads.
const LIMITS: &str = "ipu_limits.lua";
/// The number of braces around the names of models.
const MODEL_DEPTH: usize = 2;

/// Checks that slurmctld finds the script, and that each model of the limits has a file.
pub(super) fn check(report: &mut Report, directory: &Path) {
    let plugins = report.slurm_conf.value("JobSubmitPlugins").unwrap_or_default();
    if !plugins.split(',').any(is_lua) {
        return;
    }
    let script = directory.join(SCRIPT);
    if !script.exists() {
        let line = format!(
            "JobSubmitPlugins = {plugins}: {} is absent, and slurmctld does not start; copy it there with the modules \
             that it uses",
            script.display()
        );
        return report.error(line);
    }
    let Ok(limits) = safe_file::read_text(&directory.join(LIMITS)) else {
        // A script of static partitions has none.
        return;
    };
    let known: Vec<&str> = report.conf.models().map(|(name, _)| name).collect();
    for line in unknown_models(&limits, &known) {
        report.error(line);
    }
}

fn is_lua(plugin: &str) -> bool {
    let name = plugin.strip_prefix("job_submit/").unwrap_or(plugin);
    name.eq_ignore_ascii_case("lua")
}

/// Returns a finding for each model of the limits that is not one of `known`.
fn unknown_models(limits: &str, known: &[&str]) -> Vec<String> {
    let models = models(limits).into_iter();
    let unknown = models.filter(|(_, model)| !known.contains(model));
    let finding = |(line, model)| {
        let instead = match known {
            [] => String::new(),
            _ => format!("write {}, or ", known.join(" or ")),
        };
        format!(
            "{LIMITS}:{line}: models = {model}: {model}.conf is absent, and jobs of {model} never start; {instead}create \
             {model}.conf"
        )
    };
    unknown.map(finding).collect()
}

/// Returns the models of the limits with the numbers of their lines.
fn models(limits: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut word = "";
    let mut depth = 0_usize;
    let mut is_in_models = false;
    for (line, number) in limits.lines().zip(1..) {
        let code = line.split("--").next().unwrap_or_default();
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let mut rest = code;
        while let Some(c) = rest.chars().next() {
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            if end > 0 {
                word = &rest[..end];
                rest = &rest[end..];
                continue;
            }
            match c {
                '{' if is_in_models && depth == MODEL_DEPTH => {
                    found.push((number, word));
                    depth += 1;
                }
                '{' => {
                    depth += 1;
                    is_in_models |= depth == MODEL_DEPTH && word == "models";
                }
                '}' => {
                    depth = depth.saturating_sub(1);
                    is_in_models &= depth >= MODEL_DEPTH;
                }
                _ => {}
            }
            rest = &rest[c.len_utf8()..];
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_the_limits_without_a_file_is_found() {
        let shipped = "return {\n  default_model = \"pod64\", -- models = { x = {\n  models = {\n    pod64 = {\n      \
                       pod_ipus = 64,\n    },\n  },\n}\n";
        let rendered =
            "return {\n  models = {\n    [\"pod-16\"] = { pod_ipus = 16 },\n    [\"pod64\"] = {},\n  },\n}\n";
        let cases: [(&str, &[&str], &[&str]); 5] = [
            (shipped, &["pod64"], &[]),
            (
                shipped,
                &["pod16"],
                &[
                    "ipu_limits.lua:4: models = pod64: pod64.conf is absent, and jobs of pod64 never start; write \
                   pod16, or create pod64.conf",
                ],
            ),
            (
                shipped,
                &[],
                &[
                    "ipu_limits.lua:4: models = pod64: pod64.conf is absent, and jobs of pod64 never start; create \
                   pod64.conf",
                ],
            ),
            (
                rendered,
                &["pod64"],
                &[
                    "ipu_limits.lua:3: models = pod-16: pod-16.conf is absent, and jobs of pod-16 never start; write \
                   pod64, or create pod-16.conf",
                ],
            ),
            ("return {}", &["pod64"], &[]),
        ];
        for (limits, known, expected) in cases {
            assert_eq!(unknown_models(limits, known), expected, "{limits}");
        }
    }
}
