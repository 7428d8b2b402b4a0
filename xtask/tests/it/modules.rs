//! No cycle between modules: siblings use one another in one direction only. A parent and its children may
//! use each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemUse, UseTree};

/// Path of a module within its crate.
type Module = Vec<String>;

/// A module and the paths in its code.
#[derive(Default)]
struct Source {
    used: Vec<Module>,
    /// Imported and exported names, with their paths.
    names: BTreeMap<String, Module>,
}

impl Source {
    fn read(file: &Path) -> Self {
        let mut source = Self::default();
        source.visit_file(&syn::parse_file(&std::fs::read_to_string(file).unwrap()).unwrap());
        source
    }

    fn add_use(&mut self, prefix: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.add_use(&with(&path.ident), &path.tree),
            UseTree::Name(name) if name.ident == "self" => self.used.push(prefix.to_vec()),
            UseTree::Name(name) => self.add_name(name.ident.to_string(), with(&name.ident)),
            UseTree::Rename(rename) => self.add_name(rename.rename.to_string(), with(&rename.ident)),
            UseTree::Glob(_) => self.used.push(prefix.to_vec()),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(prefix, tree)),
        }
    }

    fn add_name(&mut self, name: String, path: Module) {
        self.used.push(path.clone());
        self.names.insert(name, path);
    }
}

impl<'ast> Visit<'ast> for Source {
    fn visit_item(&mut self, item: &'ast Item) {
        let (Item::Mod(syn::ItemMod { attrs, .. })
        | Item::Fn(syn::ItemFn { attrs, .. })
        | Item::Use(ItemUse { attrs, .. })) = item
        else {
            return visit::visit_item(self, item);
        };
        let is_test = |attribute: &Attribute| match &attribute.meta {
            syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
            _ => false,
        };
        if !attrs.iter().any(is_test) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.add_use(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let names = path.segments.iter().map(|segment| segment.ident.to_string());
            self.used.push(names.collect());
        }
        visit::visit_path(self, path);
    }
}

/// The modules of a crate.
struct Modules(BTreeMap<Module, Source>);

impl Modules {
    fn read(sources: &Path) -> Self {
        let mut modules = BTreeMap::new();
        for file in rust_files(sources) {
            let path = file.strip_prefix(sources).unwrap().with_extension("");
            let mut path: Module = path
                .iter()
                .map(|name| name.to_string_lossy().into_owned())
                .collect();
            // Generated code, and unit tests in files of their own.
            if path
                .iter()
                .any(|name| name == "wire" || name == "tests" || name.ends_with("_tests"))
            {
                continue;
            }
            if path == ["lib"] || path == ["main"] {
                path.clear();
            }
            let Source { used, names } = Source::read(&file);
            let module: &mut Source = modules.entry(path).or_default();
            module.used.extend(used);
            module.names.extend(names);
        }
        Self(modules)
    }

    /// Returns the module in which `path`, as `module` writes it, is defined; none outside the crate.
    fn definition(&self, module: &[String], path: &[String], depth: usize) -> Option<Module> {
        let mut from = module.to_vec();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => {
                from.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    from.pop();
                    rest = &rest[1..];
                }
            }
            child if self.0.contains_key(&[module, &[child.to_owned()]].concat()) => {}
            _ => return None,
        }
        let absolute = [from.as_slice(), rest].concat();
        let known = (0..=absolute.len())
            .rev()
            .find(|len| self.0.contains_key(&absolute[..*len]))?;
        let (found, rest) = absolute.split_at(known);
        let exported = rest.first().and_then(|name| self.0[found].names.get(name));
        let exported = exported.filter(|_| depth < 5);
        exported
            .and_then(|path| self.definition(found, path, depth + 1))
            .or_else(|| Some(found.to_vec()))
    }

    /// Returns the siblings that each module uses.
    fn uses(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let mut uses: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (module, source) in &self.0 {
            for path in &source.used {
                let Some(used) = self.definition(module, path, 0) else {
                    continue;
                };
                let common = module
                    .iter()
                    .zip(&used)
                    .take_while(|(one, other)| one == other)
                    .count();
                if common < module.len() && common < used.len() {
                    let user = module[..=common].to_vec();
                    uses.entry(user).or_default().insert(used[..=common].to_vec());
                }
            }
        }
        uses
    }
}

/// Removes every module that uses none of the others, or that none of them uses, until all that are left are
/// in a cycle or between two.
fn in_cycles(mut uses: BTreeMap<Module, BTreeSet<Module>>) -> Vec<String> {
    loop {
        let before = uses.len();
        let left: BTreeSet<Module> = uses.keys().cloned().collect();
        uses.retain(|_, used| {
            used.retain(|module| left.contains(module));
            !used.is_empty()
        });
        let used: BTreeSet<Module> = uses.values().flatten().cloned().collect();
        uses.retain(|module, _| used.contains(module));
        if uses.len() == before {
            break;
        }
    }
    let lines = uses.iter().map(|(module, used)| {
        let used: Vec<_> = used.iter().map(|path| path.join("::")).collect();
        format!("{} uses {}", module.join("::"), used.join(", "))
    });
    lines.collect()
}

fn rust_files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

#[test]
fn no_module_is_part_of_a_cycle() {
    let all = crate::layers::folders().into_iter();
    for sources in all
        .map(|folder| folder.join("src"))
        .filter(|sources| sources.is_dir())
    {
        assert_eq!(
            in_cycles(Modules::read(&sources).uses()),
            Vec::<String>::new(),
            "{}",
            sources.display()
        );
    }
}

#[test]
fn a_planted_cycle_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("lib.rs", "mod a;\nmod b;\nmod c;\npub use b::B;");
    write("a.rs", "pub struct A(crate::B);");
    write("b.rs", "pub struct B;\nfn f() { super::c::g() }");
    write("c.rs", "pub fn g() {}");
    assert_eq!(
        in_cycles(Modules::read(folder.path()).uses()),
        Vec::<String>::new()
    );
    write("c.rs", "use crate::a::A as Renamed;\npub fn g() {}");
    assert_eq!(
        in_cycles(Modules::read(folder.path()).uses()),
        ["a uses b", "b uses c", "c uses a"]
    );
    write(
        "c.rs",
        "pub fn g() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}",
    );
    assert_eq!(
        in_cycles(Modules::read(folder.path()).uses()),
        Vec::<String>::new()
    );
}
