//! Names of items in the prose exist in the public API of the crates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{ImplItem, Item, TraitItem, Type, Visibility};

use crate::guide::pages;
use crate::tidy::{read, root, sources};

/// Documents about the libraries, in addition to the guide and the READMEs of the crates.
const DOCUMENTS: [&str; 5] = [
    "ARCHITECTURE.md",
    "docs/allocator.md",
    "docs/kubernetes-ledger.md",
    "docs/lifecycle.md",
    "docs/placement.md",
];

/// Names of Rust, of Kubernetes, of examples in the text, and of other programs.
const OTHER_NAMES: [&str; 8] = [
    "allocator_step",
    "clone",
    "Default",
    "LedgerFull",
    "no_std",
    "place_answer",
    "serde_json",
    "Spread",
];

/// Public names by the type that has them. Items have the empty name as their type.
#[derive(Default)]
struct Api(BTreeMap<String, BTreeSet<String>>);

impl Api {
    /// Reads the sources of the crates in a folder.
    fn read(folder: &Path) -> Self {
        let mut api = Self::default();
        for path in sources().into_iter().filter(|path| path.starts_with(folder)) {
            if let Some((library, _)) = path.to_str().unwrap().split_once("/src/") {
                api.add("", library.rsplit('/').next().unwrap().replace('-', "_"));
                api.visit_file(&syn::parse_file(&read(&path)).unwrap());
            }
        }
        api
    }

    fn add(&mut self, owner: impl ToString, name: impl ToString) {
        let names = self.0.entry(owner.to_string()).or_default();
        names.insert(name.to_string());
    }

    /// Returns whether the code between two backticks names nothing, or only names that exist.
    fn knows(&self, code: &str) -> bool {
        let path = code.split(['(', '<']).next().unwrap().trim_end_matches("::");
        let segments: Vec<&str> = path.split("::").collect();
        let is_name = |name: &&str| name.chars().all(|c| c.is_alphanumeric() || c == '_') && !name.is_empty();
        let is_type = path.starts_with(char::is_uppercase) && path.contains(char::is_lowercase);
        let is_snake_case = path.contains('_') && !path.contains(char::is_uppercase);
        let names_item = is_type || is_snake_case || segments.len() > 1 || code.ends_with("()");
        if !segments.iter().all(is_name) || !names_item {
            return true;
        }
        let mut owner = None;
        segments.into_iter().all(|name| {
            let members = owner.and_then(|owner| self.0.get(owner));
            owner = Some(name);
            OTHER_NAMES.contains(&name)
                || members.map_or_else(
                    || self.0.values().any(|names| names.contains(name)),
                    |members| members.contains(name),
                )
        })
    }
}

impl<'ast> Visit<'ast> for Api {
    fn visit_item(&mut self, item: &'ast Item) {
        let is_public = |visibility: &Visibility| matches!(visibility, Visibility::Public(_));
        match item {
            Item::Fn(item) if is_public(&item.vis) => self.add("", &item.sig.ident),
            Item::Use(item) if is_public(&item.vis) => self.visit_item_use(item),
            Item::Mod(item) if is_public(&item.vis) => {
                self.add("", &item.ident);
                visit::visit_item_mod(self, item);
            }
            Item::Struct(item) if is_public(&item.vis) => {
                self.add("", &item.ident);
                let fields = item.fields.iter().filter(|field| is_public(&field.vis));
                let names = fields.filter_map(|field| field.ident.as_ref());
                names.for_each(|name| self.add(&item.ident, name));
            }
            Item::Enum(item) if is_public(&item.vis) => {
                self.add("", &item.ident);
                let names = item.variants.iter().map(|variant| &variant.ident);
                names.for_each(|name| self.add(&item.ident, name));
            }
            Item::Trait(item) if is_public(&item.vis) => {
                self.add("", &item.ident);
                for part in &item.items {
                    if let TraitItem::Fn(part) = part {
                        self.add(&item.ident, &part.sig.ident);
                    }
                }
            }
            Item::Impl(item) => {
                for part in &item.items {
                    if let (ImplItem::Fn(part), Type::Path(owner)) = (part, &*item.self_ty)
                        && is_public(&part.vis)
                    {
                        self.add(&owner.path.segments.last().unwrap().ident, &part.sig.ident);
                    }
                }
            }
            // The variants of an enum that a macro makes end with commas.
            Item::Macro(item) if item.ident.is_none() => {
                let tokens = item.mac.tokens.to_string();
                let names = tokens
                    .split(',')
                    .filter_map(|part| part.split_whitespace().last());
                let names = names.filter(|name| name.starts_with(char::is_uppercase));
                names.for_each(|name| self.add("", name));
            }
            _ => {}
        }
    }

    fn visit_use_name(&mut self, item: &'ast syn::UseName) {
        self.add("", &item.ident);
    }
}

/// Returns the code between backticks in the prose of a document.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    let blocks = text.split("\n```").step_by(2);
    blocks.flat_map(|prose| prose.split('`').skip(1).step_by(2))
}

#[test]
fn items_that_the_prose_names_exist() {
    let api = Api::read(&root());
    let readmes = crate::layers::folders()
        .into_iter()
        .map(|folder| folder.join("README.md"));
    let readmes = readmes.filter(|path| path.exists());
    let documents = DOCUMENTS.iter().map(|name| root().join(name));
    let mut found = Vec::new();
    for path in readmes.chain(documents).chain(pages()) {
        let text = read(&path);
        let unknown = spans(&text).filter(|code| !api.knows(code));
        let file = path.strip_prefix(root()).unwrap().display();
        found.extend(unknown.map(|code| format!("{file}: `{code}`")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Returns the number of public functions, types, traits, modules and constants of a crate, and that of the
/// examples in its documentation that the compiler checks.
fn items_and_examples(folder: &Path) -> [usize; 2] {
    let sources = sources()
        .into_iter()
        .filter(|path| path.starts_with(folder.join("src")));
    let texts = sources
        .chain([folder.join("README.md")])
        .filter(|path| path.exists());
    let text: String = texts.map(|path| read(&path)).collect();
    let kinds = ["fn", "struct", "enum", "trait", "type", "mod", "const", "static"];
    let is_item = |line: &&str| {
        let item = line.trim_start().strip_prefix("pub ");
        item.is_some_and(|item| item.split(' ').any(|word| kinds.contains(&word)))
    };
    let prose = text.lines().map(|line| line.trim_start_matches(['/', '!', ' ']));
    // Every second fence ends a block.
    let fences = prose.filter_map(|line| line.strip_prefix("```")).step_by(2);
    let is_example = |kind: &&str| ["", "no_run", "rust", "rust,no_run"].contains(kind);
    [
        text.lines().filter(is_item).count(),
        fences.filter(is_example).count(),
    ]
}

#[test]
fn the_sizes_of_the_crates_in_the_guide_are_off_by_a_tenth_at_most() {
    let page = read(&root().join("docs/embed/overview.md"));
    let mut stale = Vec::new();
    for library in [
        "core",
        "vipu-client",
        "allocator",
        "proxy-client",
        "k8s",
        "slurm",
        "testkit",
    ] {
        let library = format!("ipu-{library}");
        let folder = root().join(&library);
        let counted: usize = Api::read(&folder).0.values().map(BTreeSet::len).sum();
        let [items, examples] = items_and_examples(&folder);
        let counted = [counted, items, examples];
        let mark = format!("| `{library}` | ");
        let row = page.lines().find_map(|line| line.strip_prefix(&mark)).unwrap();
        let figures = row.split(" | ").map(|cell| cell.parse::<usize>().unwrap());
        if counted
            .iter()
            .zip(figures)
            .any(|(now, figure)| now.abs_diff(figure) * 10 > *now)
        {
            stale.push(format!("{mark}{} | {items} | {examples} |", counted[0]));
        }
    }
    assert!(stale.is_empty(), "{}", stale.join("\n"));
}

#[test]
fn a_planted_stale_name_is_found() {
    let mut api = Api::default();
    let source = "pub mod placement { pub fn place() {} fn private() {} }
        pub enum Mode { Delegated }
        pub struct Options { pub mode: Mode, secret: u8 }
        impl Options { pub fn start(self) {} }
        enum Hidden { Secret }
        pub trait Store { fn open(&self); }
        codes! { /// Waits.
            TooLarge, }";
    api.visit_file(&syn::parse_str(source).unwrap());
    let good = "`Options::mode` `Options::start::<Gone>()` `Mode::Delegated` `Delegated` `TooLarge`
        `placement::place(view)` `place()` `Store::open` `check` `pod64` `--wait` `Cargo.toml` `IPU_CASES=1`
        Gone
```text
`Gone`
```
";
    assert_eq!(spans(good).filter(|code| !api.knows(code)).count(), 0);
    let stale =
        "`Options::open` `Options::secret` `Gone` `Mode::Gone` `placement::private` `gone()` `stop_all`
        `Secret` `gone::place` `Gone::new(1)`";
    let unknown: Vec<&str> = spans(stale).filter(|code| !api.knows(code)).collect();
    assert_eq!(unknown.len(), 10, "{unknown:?}");
}
