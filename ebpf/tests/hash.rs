//! Tests the hashes that name stacks and call sites, compiled from the header that the programs include.
#![expect(clippy::unwrap_used, reason = "where nothing else can be told, the test fails")]

mod header;

/// The modulus of the polynomials.
const PRIME: u128 = (1 << 61) - 1;
const POINT: u64 = 0x0123_4567_89ab_cdef;
const OTHER_POINT: u64 = 0x0edc_ba98_7654_3210;

/// The hashes that the header makes of a list of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hashes {
    hash: u64,
    id: u64,
    site: u64,
}

/// Compiles the header, and returns the hashes of each list of words, with the point that is the first of the pair.
fn hashes(lists: &[(u64, Vec<u64>)]) -> Vec<Hashes> {
    let lines: String = lists
        .iter()
        .map(|(point, words)| {
            let words: Vec<String> = words.iter().map(|word| format!("{word:x}")).collect();
            format!("{point:x} {}\n", words.join(" "))
        })
        .collect();
    let text = header::run("hash", lines);
    let found: Vec<Hashes> = text
        .lines()
        .map(|line| {
            let mut words = line.split(' ').map(|word| u64::from_str_radix(word, 16).unwrap());
            let mut next = || words.next().unwrap();
            Hashes { hash: next(), id: next(), site: next() }
        })
        .collect();
    assert_eq!(found.len(), lists.len());
    found
}

/// Returns the same polynomial, computed in 128-bit arithmetic.
fn polynomial(point: u64, words: &[u64]) -> u128 {
    let (first, rest) = words.split_first().unwrap();
    rest.iter().fold(u128::from(*first), |hash, word| (hash * u128::from(point) + u128::from(*word)) % PRIME) % PRIME
}

/// Returns `count` words without a pattern, which are the same for the same seed.
fn words(seed: u64, count: u64) -> Vec<u64> {
    let word = |at: u64| {
        let word = (seed ^ at.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (word ^ word >> 31).wrapping_mul(0x94D0_49BB_1331_11EB)
    };
    (1..=count).map(word).collect()
}

#[test]
fn an_id_is_the_polynomial_of_its_words_and_odd() {
    let mut lists = Vec::new();
    for seed in 0..200 {
        let mut list = words(seed, seed % 40 + 2);
        list[0] >>= 32;
        lists.push((words(seed, 1)[0] >> 4, list));
    }
    // The largest possible values.
    lists.push(((1 << 60) - 1, vec![u64::from(u32::MAX), u64::MAX, u64::MAX, u64::MAX]));
    for ((point, list), found) in lists.iter().zip(hashes(&lists)) {
        let expected = polynomial(*point, list);
        assert_eq!(u128::from(found.hash) % PRIME, expected, "{list:x?}");
        assert_eq!(u128::from(found.id), expected << 1 | 1, "{list:x?}");
        assert!(found.hash < (1 << 61) + 8);
    }
}

#[test]
fn frames_that_collide_under_one_key_do_not_under_another() {
    // With a known point, adds one to a frame, and subtracts the effect of that on the hash from the next frame.
    let honest = vec![16, 0x40_1000, 0x7f00_1234_5678, 0x40_2000];
    let forged = |point: u64| {
        let mut forged = honest.clone();
        forged[1] += 1;
        forged[2] = u64::try_from((u128::from(forged[2]) + PRIME - u128::from(point)) % PRIME).unwrap();
        forged
    };
    let found = hashes(&[
        (POINT, honest.clone()),
        (POINT, forged(POINT)),
        (OTHER_POINT, honest.clone()),
        (OTHER_POINT, forged(POINT)),
    ]);
    assert_eq!(found[0].id, found[1].id);
    assert_ne!(found[2].id, found[3].id);
    assert_ne!(found[0].id, found[2].id);
}

#[test]
fn a_call_site_is_even_and_each_of_its_words_tells() {
    // Addresses and system call numbers have no bits above the lowest 48.
    const BITS: u32 = 48;
    let site = words(7, 7);
    let mut lists = vec![(POINT, site.clone())];
    for at in 0..site.len() {
        for bit in 1..BITS {
            let mut other = site.clone();
            other[at] ^= 1 << bit;
            lists.push((POINT, other));
        }
    }
    lists.push((OTHER_POINT, site));
    let mut found: Vec<u64> = hashes(&lists).iter().map(|hashes| hashes.site).collect();
    assert!(found.iter().all(|site| site % 2 == 0));
    let count = found.len();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), count, "two are the same");
}
