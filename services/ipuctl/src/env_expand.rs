//! Expands `$(NAME)` in commands, arguments and variables as Kubernetes does: an undefined name is not
//! changed, and `$$` is an escaped `$`.

/// Expands the references of `text` to names that `lookup` defines.
pub(crate) fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(offset) = rest.find('$') {
        expanded.push_str(&rest[..offset]);
        rest = &rest[offset + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = after;
            continue;
        }
        let name = rest.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        match name {
            Some((name, after)) => {
                expanded.push_str(&lookup(name).unwrap_or_else(|| format!("$({name})")));
                rest = after;
            }
            None => expanded.push('$'),
        }
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let lookup = |name: &str| (name == "VAR").then(|| "value".to_owned());
        assert_eq!(expand(text, lookup), expected, "{text}");
    }

    /// Cases of the Kubernetes documentation of `$(VAR_NAME)` references.
    #[test]
    fn references_are_expanded_as_kubernetes_does() {
        check("$(VAR)", "value");
        check("a$(VAR)b$(VAR)c", "avaluebvaluec");
        check("$$(VAR)", "$(VAR)");
        check("$$$(VAR)", "$value");
        check("$(UNKNOWN)", "$(UNKNOWN)");
        check("$VAR ${VAR} $", "$VAR ${VAR} $");
        check("$(VAR", "$(VAR");
        check("", "");
    }
}
