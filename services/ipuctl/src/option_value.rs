//! Parses the values of options. An error states the rule and the fix; clap adds option and value.

use std::ops::RangeInclusive;
use std::str::FromStr;

/// Returns the parser of a number in `range`; its error is `rule`.
pub(crate) fn number<T>(
    range: RangeInclusive<T>,
    rule: &'static str,
) -> impl Fn(&str) -> Result<T, &'static str> + Clone
where
    T: FromStr + PartialOrd + Clone,
{
    move |text| {
        let number = text.parse().ok();
        number.filter(|number| range.contains(number)).ok_or(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_outside_its_range_is_rejected_by_the_rule() {
        let parse = number(0..=10, "must be from 0 to 10");
        for (text, expected) in [("0", Ok(0)), ("10", Ok(10))] {
            assert_eq!(parse(text), expected);
        }
        for text in ["", "-1", "11", "1.5", "ten", "99999999999999999999"] {
            assert_eq!(parse(text), Err("must be from 0 to 10"), "{text}");
        }
    }
}
