//! Tests the tests: `cargo xtask mutants PACKAGE [SAMPLE]` changes a library in small ways, each of which its
//! tests should catch.
//!
//! One build has all mutants. Each is off until an environment variable has its number.

use std::cmp::Reverse;
use std::error::Error;
use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Block, Expr, ReturnType, Signature, Type, UnOp};

use crate::{print_line, root, target};

/// The smallest share of mutants in percent that the tests must catch. Of twenty, three may be among the few
/// that are missed for a reason.
const MIN_PERCENT: usize = 85;

/// The longest duration of a program of tests without a mutant.
const MAX_DURATION: Duration = Duration::from_secs(600);

/// The least time after which tests with a mutant hang.
const MIN_LIMIT: Duration = Duration::from_secs(10);

/// Tests that read sources, or that take longer than all others.
const SKIPPED: [&str; 4] = ["allocator::exhaustive", "docs::", "example_scheduler", "purity"];

/// Added to the crate.
const SWITCH: &str = r#"
extern crate std as std_of_switches;
pub(crate) fn is_on(number: usize) -> bool {
    static ON: std_of_switches::sync::LazyLock<Option<usize>> = std_of_switches::sync::LazyLock::new(|| {
        std_of_switches::env::var("MUTANT").ok()?.parse().ok()
    });
    *ON == Some(number)
}
"#;

/// A part of a file, and the mutants that can stand instead.
struct MutationSite {
    range: Range<usize>,
    line: usize,
    mutants: Vec<String>,
}

/// Collects the sites of a file.
struct MutationSites<'a> {
    text: &'a str,
    found: Vec<MutationSite>,
}

impl MutationSites<'_> {
    fn text_of(&self, spanned: &impl Spanned) -> &str {
        &self.text[spanned.span().byte_range()]
    }

    fn add(&mut self, span: Span, mutants: impl IntoIterator<Item = String>) {
        let (range, line) = (span.byte_range(), span.start().line);
        let mutants = mutants.into_iter().collect();
        self.found.push(MutationSite { range, line, mutants });
    }

    /// Adds early returns at the start of the body of a function.
    fn add_returns(&mut self, signature: &Signature, body: &Block) {
        let values: &[&str] = match &signature.output {
            ReturnType::Default => &[""],
            ReturnType::Type(_, output) => match self.text_of(&**output) {
                "bool" => &["true", "false"],
                "fmt::Result" => &["Ok(())"],
                "u16" | "u32" | "u64" | "usize" => &["0", "1"],
                "String" => &["Default::default()"],
                text if text.starts_with("Option<") => &["None"],
                text if text.starts_with("Result<(),") => &["Ok(())"],
                text if text.starts_with("Vec<") => &["Default::default()"],
                _ => &[],
            },
        };
        // The default of a trait may be such a value already.
        let is_other = |value: &&&str| {
            let text = self.text_of(body);
            let text = text.trim_matches(|c: char| c == '{' || c == '}' || c.is_whitespace());
            text != **value && (**value != "Default::default()" || text != "Vec::new()")
        };
        let values: Vec<&&str> = values.iter().filter(is_other).collect();
        if let (Some(first), false) = (body.stmts.first(), values.is_empty()) {
            let start = first.span().byte_range().start;
            let mutants = values.iter().map(|value| format!("return {value};")).collect();
            let line = first.span().start().line;
            let range = start..start;
            self.found.push(MutationSite { range, line, mutants });
        }
    }
}

/// Returns the operators that can stand instead of another one, and still compile.
fn other_operators(op: &BinOp, has_number: bool) -> &'static [&'static str] {
    match op {
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::Lt(_) => &["<=", ">="],
        BinOp::Le(_) => &["<", ">"],
        BinOp::Gt(_) => &[">=", "<="],
        BinOp::Ge(_) => &[">", "<"],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::Add(_) if has_number => &["-"],
        BinOp::Sub(_) if has_number => &["+"],
        BinOp::AddAssign(_) if has_number => &["-="],
        BinOp::SubAssign(_) if has_number => &["+="],
        _ => &[],
    }
}

/// Returns whether an expression is a part of `if let` or of a chain with it.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// Returns whether an item is only compiled under a condition, as tests are.
fn is_conditional(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .any(|attribute| attribute.path().is_ident("cfg"))
}

impl<'ast> Visit<'ast> for MutationSites<'_> {
    // The compiler evaluates these, so that no switch can stand in them.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_type(&mut self, _: &'ast Type) {}

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_conditional(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if item.sig.constness.is_none() {
            self.add_returns(&item.sig, &item.block);
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if item.sig.constness.is_none() {
            self.add_returns(&item.sig, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.add_returns(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let has_number = [&binary.left, &binary.right]
            .iter()
            .any(|side| matches!(***side, Expr::Lit(_)));
        if !has_let(&binary.left) && !has_let(&binary.right) {
            let (left, right) = (self.text_of(&binary.left), self.text_of(&binary.right));
            let others = other_operators(&binary.op, has_number).iter();
            let mutants: Vec<_> = others.map(|other| format!("{left} {other} {right}")).collect();
            self.add(binary.span(), mutants);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        if matches!(unary.op, UnOp::Not(_)) {
            // The operand may be a reference, which has another type than its negation.
            let mutant = format!("!{}", self.text_of(unary));
            self.add(unary.span(), [mutant]);
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_pat_guard(&mut self, pat: &'ast syn::PatGuard) {
        if !has_let(&pat.guard) {
            self.add(pat.guard.span(), ["true".to_owned(), "false".to_owned()]);
        }
        visit::visit_pat_guard(self, pat);
    }
}

/// A mutant that is in the build.
struct Mutant {
    number: usize,
    description: String,
}

/// Returns a file with a switch for each mutant.
fn with_switches(path: &str, text: &str, planted: &mut Vec<Mutant>) -> Result<String, syn::Error> {
    let mut sites = MutationSites {
        text,
        found: Vec::new(),
    };
    sites.visit_file(&syn::parse_file(text)?);
    let mut sites = sites.found;
    sites.retain(|site| !site.mutants.is_empty());
    // An early return stands before the expressions at the same position, and those before their parts.
    sites.sort_by_key(|site| (site.range.start, !site.range.is_empty(), Reverse(site.range.end)));
    let mut numbered = Vec::new();
    for site in sites {
        let original = match &text[site.range.clone()] {
            "" => "the body".to_owned(),
            original => format!("`{original}`"),
        };
        let switches = site.mutants.iter().map(|mutant| {
            let number = planted.len();
            let description = format!("{path}:{}: `{mutant}` instead of {original}", site.line);
            let description = description.split_whitespace().collect::<Vec<_>>().join(" ");
            planted.push(Mutant { number, description });
            format!("if crate::is_on({number}) {{ {mutant} }} else ")
        });
        numbered.push((site.range, switches.collect::<String>()));
    }
    Ok(render(text, 0..text.len(), &numbered))
}

/// Returns a part of a file with the switches of the sites in it.
fn render(text: &str, part: Range<usize>, sites: &[(Range<usize>, String)]) -> String {
    let (mut rendered, mut position, mut rest) = (String::new(), part.start, sites);
    while let [(range, switches), following @ ..] = rest {
        rendered += &text[position..range.start];
        let inner = following.partition_point(|(other, _)| other.start < range.end);
        let original = render(text, range.clone(), &following[..inner]);
        if range.is_empty() {
            rendered += &format!("{switches} {{}} ");
        } else {
            rendered += &format!("({switches}{{ {original} }})");
        }
        (position, rest) = (range.end, &following[inner..]);
    }
    rendered + &text[position..part.end]
}

/// Copies what is checked in or staged, with switches in the sources of a package.
fn plant(root: &Path, copy: &Path, package: &str) -> Result<Vec<Mutant>, Box<dyn Error>> {
    let prefix = format!("--prefix={}/", copy.display());
    let mut export = Command::new("git");
    export
        .current_dir(root)
        .args(["checkout-index", "--all", "--force", &prefix]);
    if !export.status()?.success() {
        return Err("git checkout-index failed".into());
    }
    let mut planted = Vec::new();
    for path in sources(&copy.join(package).join("src"))? {
        let text = std::fs::read_to_string(&path)?;
        let name = path.strip_prefix(copy)?.display().to_string();
        let mut text = with_switches(&name, &text, &mut planted)?;
        if path.ends_with("src/lib.rs") {
            text += SWITCH;
        }
        std::fs::write(path, text)?;
    }
    Ok(planted)
}

/// Returns the sources in a folder without those of tests, sorted.
fn sources(folder: &Path) -> Result<Vec<PathBuf>, std::io::Error> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            files.extend(sources(&path)?);
        } else if path.to_string_lossy().ends_with(".rs") && !path.to_string_lossy().ends_with("tests.rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Builds the tests of a package, and returns the programs.
fn build(copy: &Path, target: &Path, package: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(copy).env("CARGO_TARGET_DIR", target);
    cargo.args([
        "test",
        "--package",
        package,
        "--all-features",
        "--lib",
        "--test",
        "it",
        "--no-run",
    ]);
    let output = cargo
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::piped())
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let messages = String::from_utf8(output.stdout)?;
    let messages = messages.lines().map(serde_json::from_str::<serde_json::Value>);
    let messages = messages.collect::<Result<Vec<_>, _>>()?;
    let programs = messages
        .iter()
        .filter_map(|message| message["executable"].as_str());
    Ok(programs.map(str::to_owned).collect())
}

/// Returns whether a program of tests succeeds within `limit`. It is ended at the first failure, with all
/// processes that it has started: the test of a mutant may leave one that never ends.
fn succeeds(
    folder: &Path,
    program: &str,
    limit: Duration,
    mutant: Option<usize>,
) -> Result<bool, std::io::Error> {
    let mut tests = Command::new(program);
    tests
        .current_dir(folder)
        .env("CARGO_MANIFEST_DIR", folder)
        .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
    for skipped in SKIPPED {
        tests.args(["--skip", skipped]);
    }
    if let Some(number) = mutant {
        tests.env("MUTANT", number.to_string());
    }
    let tests = tests.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut tests = tests.process_group(0).spawn()?;
    let (sender, ended) = mpsc::channel();
    if let Some(output) = tests.stdout.take() {
        std::thread::spawn(move || {
            let mut lines = BufReader::new(output).lines().map_while(Result::ok);
            // An error once the time is over, because the receiver is gone then.
            let _ = sender.send(!lines.any(|line| line.ends_with(" ... FAILED")));
        });
    }
    let succeeded = ended.recv_timeout(limit).unwrap_or(false);
    if succeeded && tests.wait()?.success() {
        return Ok(true);
    }
    let group = format!("-{}", tests.id());
    let mut kill = Command::new("kill");
    // It complains if no process is left.
    kill.args(["-KILL", "--", &group])
        .stderr(Stdio::null())
        .status()?;
    tests.wait()?;
    Ok(false)
}

/// Plants mutants into a package, runs its tests for each or for a sample, and prints those that no test
/// catches. Returns whether enough are caught.
pub(crate) fn mutants(package: &str, sample: Option<usize>) -> Result<bool, Box<dyn Error>> {
    let root = root()?;
    let target = target()?;
    let copy = target.join("mutants");
    let planted = plant(root, &copy, package)?;
    let programs = build(&copy, &target, package)?;
    let folder = copy.join(package);
    let mut tests = Vec::new();
    for program in programs {
        let begun = Instant::now();
        if !succeeds(&folder, &program, MAX_DURATION, None)? {
            return Err(format!("{program} fails without a mutant").into());
        }
        tests.push((program, MIN_LIMIT + begun.elapsed() * 4));
    }
    let total = planted.len();
    let sample = sample.map_or(total, |sample| sample.min(total));
    if sample == 0 {
        return Err(format!("a sample of 0 of the {total} mutants of {package} shows nothing").into());
    }
    let tried: Vec<&Mutant> = (0..sample)
        .map(|number| &planted[number * total / sample])
        .collect();
    let count_missed = |mutants: &[&Mutant]| -> Result<usize, std::io::Error> {
        let mut missed = 0;
        for mutant in mutants {
            let mut is_caught = false;
            for (program, limit) in &tests {
                is_caught = is_caught || !succeeds(&folder, program, *limit, Some(mutant.number))?;
            }
            if !is_caught {
                print_line(&mutant.description);
                missed += 1;
            }
        }
        Ok(missed)
    };
    let threads = std::thread::available_parallelism()?.get();
    let results = std::thread::scope(|scope| {
        let parts = tried.chunks(sample.div_ceil(threads));
        let workers: Vec<_> = parts.map(|part| scope.spawn(|| count_missed(part))).collect();
        workers
            .into_iter()
            .map(|worker| worker.join())
            .collect::<Vec<_>>()
    });
    let mut caught = sample;
    for result in results {
        caught -= result.map_err(|_| "a thread panicked")??;
    }
    let percent = caught * 100 / sample;
    print_line(&format!(
        "{caught} of {sample} mutants of {package} are caught ({percent} %); it has {total}"
    ));
    Ok(percent >= MIN_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::with_switches;

    #[test]
    fn nested_conditions_have_one_switch_for_each_mutant() {
        let mut planted = Vec::new();
        let text = "fn f(a: u32) -> bool { !g() && a < 4 }";
        let switched = with_switches("f.rs", text, &mut planted).unwrap();
        let expected = "fn f(a: u32) -> bool { \
            if crate::is_on(0) { return true; } else if crate::is_on(1) { return false; } else  {} \
            (if crate::is_on(2) { !g() || a < 4 } else { \
            (if crate::is_on(3) { !!g() } else { !g() }) && \
            (if crate::is_on(4) { a <= 4 } else if crate::is_on(5) { a >= 4 } else { a < 4 }) }) }";
        assert_eq!(switched, expected);
        assert_eq!(
            planted[2].description,
            "f.rs:1: `!g() || a < 4` instead of `!g() && a < 4`"
        );
    }

    #[test]
    fn what_the_compiler_evaluates_has_no_mutants() {
        let mut planted = Vec::new();
        let text = "const A: bool = 1 < 2; const fn f(a: u32) -> bool { a < 1 }";
        assert_eq!(with_switches("f.rs", text, &mut planted).unwrap(), text);
        assert!(planted.is_empty());
    }
}
