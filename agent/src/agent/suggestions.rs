//! Suggests names for one that nobody has: names with the same word, or else names that differ by a typing error.

use std::collections::BTreeSet;

use tokio::sync::Semaphore;

/// The largest number of names in a suggestion.
const MOST: usize = 3;
/// The part of a text or a name that is compared, in bytes: the time to compare two grows with both.
const COMPARED: usize = 128;
/// The shortest word that is searched for, in letters: shorter ones are in names by chance.
const SHORTEST: usize = 3;

/// The permit to collect and compare names.
static ONE: Semaphore = Semaphore::const_new(1);

/// Returns a sentence with likely names; `None` if no name is likely, or if names are compared for another request. It
/// collects and compares the names on another thread, since the server has one thread for all requests, and a node may
/// have thousands of names.
pub(super) async fn suggestion(
    text: String,
    names: impl FnOnce() -> BTreeSet<String> + Send + 'static,
) -> Option<String> {
    let one = ONE.try_acquire().ok()?;
    // The comparison goes on if the client goes away.
    let compare = move || {
        let says = likely(&text, &names());
        drop(one);
        says
    };
    tokio::task::spawn_blocking(compare).await.ok()?
}

fn likely(text: &str, names: &BTreeSet<String>) -> Option<String> {
    if names.is_empty() {
        return Some("none are known yet; try again in a moment".into());
    }
    let cut = |text: &str| text[..text.floor_char_boundary(COMPARED)].to_lowercase();
    let last = |text: &str| cut(text.trim_end_matches('/').rsplit('/').next().unwrap_or_default());
    let word = last(text);
    let is_long = word.chars().count() >= SHORTEST;
    let mut found: Vec<&String> = names.iter().filter(|name| is_long && cut(name).contains(&word)).collect();
    found.sort_by_key(|name| (!last(name).starts_with(&word), name.len()));
    if found.is_empty() {
        // At most a third of the letters may be wrong, as in keys of the configuration, and not all of them.
        let letters = word.chars().count();
        let most = (letters.max(SHORTEST) / 3).min(letters.saturating_sub(1));
        let distance = |name: &String| strsim::osa_distance(&word, &last(name));
        let mut near: Vec<_> = names.iter().map(|name| (distance(name), name)).collect();
        near.retain(|(distance, _)| letters > 0 && *distance <= most);
        near.sort();
        found = near.into_iter().map(|(_, name)| name).collect();
    }
    let found: Vec<_> = found.iter().take(MOST).map(|name| format!("`{name}`")).collect();
    (!found.is_empty()).then(|| format!("did you mean {}?", found.join(" or ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 8] = [
        "/",
        "/system.slice/ssh.service",
        "/system.slice/cron.service",
        "/user.slice",
        "shop/checkout-7c9d6b5f4-mm2qz",
        "shop/session-cache-0",
        "shop/cart",
        "batch/nightly-report",
    ];

    fn says(text: &str) -> Option<String> {
        likely(text, &NAMES.iter().map(ToString::to_string).collect())
    }

    #[tokio::test]
    async fn while_names_are_compared_another_request_gets_no_hint_and_does_not_wait() {
        let names = || BTreeSet::from(["shop/cart".to_owned()]);
        assert!(suggestion("cart".into(), names).await.is_some());
        let _one = ONE.try_acquire().unwrap();
        assert_eq!(suggestion("cart".into(), names).await, None);
    }

    #[test]
    fn names_with_the_word_are_suggested_whatever_is_before_it() {
        for text in ["shop/checkout", "checkout", "default/Checkout", "shop/checkout/"] {
            assert_eq!(says(text).as_deref(), Some("did you mean `shop/checkout-7c9d6b5f4-mm2qz`?"), "{text}");
        }
        let of_namespace = "did you mean `shop/cart` or `shop/session-cache-0` or `shop/checkout-7c9d6b5f4-mm2qz`?";
        assert_eq!(says("shop").as_deref(), Some(of_namespace));
    }

    #[test]
    fn a_typing_error_is_found_and_a_name_that_is_not_like_any_is_not() {
        let ssh = says("/system.slice/sssh.service").unwrap();
        assert!(ssh.starts_with("did you mean `/system.slice/ssh.service`"), "{ssh}");
        assert_eq!(says("shop/carts").as_deref(), Some("did you mean `shop/cart`?"));
        for text in ["/nosuch", "shop/nosuch", "/a", "", "/", "x"] {
            assert_eq!(says(text), None, "{text}");
        }
        assert!(likely("/a", &BTreeSet::new()).unwrap().contains("try again"));
        // A long text is compared in part, also where its characters have several bytes.
        assert_eq!(says(&format!("/{}", "é".repeat(4000))), None);
    }
}
