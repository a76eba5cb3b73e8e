"""Addresses of servers, as typed and as shown."""

import pytest

from specbench.errors import UsageError
from specbench.inputs.address import Address


def test_an_address_is_parsed_with_an_optional_k():
    address = Address.at("http://host:8000/v1/#k=5", "--step-times")
    assert (address.root, address.api, address.k) == ("http://host:8000", "http://host:8000/v1", 5)
    assert Address.at("https://a.org/models/v1", "--step-times").root == "https://a.org/models"


@pytest.mark.parametrize(
    ("url", "root", "api"),
    [
        ("https://a.org", "https://a.org", "https://a.org/v1"),
        ("https://a.org/api/paas/v4", "https://a.org/api/paas", "https://a.org/api/paas/v4"),
        ("https://a.org/v1/chat/completions/", "https://a.org", "https://a.org/v1"),
        ("https://a.org/v4/completions#k=0", "https://a.org", "https://a.org/v4"),
        ("https://a.org/v1/openai", "https://a.org/v1/openai", "https://a.org/v1/openai/v1"),
        # What is before an endpoint is the API, also without a version.
        ("https://a.org/openai/chat/completions", "https://a.org/openai", "https://a.org/openai"),
        ("https://a.org/chat/completions", "https://a.org", "https://a.org"),
    ],
)
def test_an_address_may_end_in_a_version_or_in_an_endpoint(url, root, api):
    address = Address.at(url, "--base-url")
    assert (address.root, address.api) == (root, api)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:secret@host:8000",
        "http://secret@a#fast",
        "ftp://me:secret@a",
        "http://me:secret@a:b",
    ],
)
def test_a_password_in_an_address_is_refused_and_not_printed(url):
    with pytest.raises(UsageError, match=r"--step-times.*SPECBENCH_API_KEY") as wrong:
        Address.at(url, "--step-times")
    assert "secret" not in str(wrong.value)


def test_a_host_specific_api_key_takes_precedence():
    address = Address.at("https://api.my-host.org/v1", "--step-times")
    general = {"SPECBENCH_API_KEY": "general"}
    assert address.key({}) is None
    assert address.key(general) == "general"
    environment = {"SPECBENCH_API_KEY_API_MY_HOST_ORG": "own"}
    assert address.key(general | environment) == "own"
    assert Address.at("https://other.org", "--step-times").key(environment) is None


def test_a_malformed_address_is_refused_without_repeating_it():
    for url in ("http://me:secret@[::1", "http://me:secret\u2100@host"):
        with pytest.raises(UsageError, match=r"--step-times: .*such as http://localhost") as wrong:
            Address.at(url, "--step-times")
        assert "secret" not in str(wrong.value)
    with pytest.raises(UsageError, match="expected the server's K"):
        Address.at("http://a#k=\u00b2", "--step-times")


def test_a_key_that_no_header_can_hold_is_refused_and_not_repeated():
    address = Address.at("http://a", "--step-times")
    assert address.key({"SPECBENCH_API_KEY": " sk-1|a:b=\r\n"}) == "sk-1|a:b="
    for key in ("two words", 'quo"ted', "back\\slash", "it's", "na\u00efve", "s3cret\x01"):
        with pytest.raises(UsageError, match="SPECBENCH_API_KEY_A contains a character") as wrong:
            address.key({"SPECBENCH_API_KEY_A": key})
        assert key not in str(wrong.value)
