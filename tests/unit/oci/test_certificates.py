from pathlib import Path

import pytest

from builder.oci.certificates import honour_ca_variables


@pytest.mark.parametrize("name", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_a_bundle_of_requests_or_curl_counts_as_the_certificates_to_trust(name: str, tmp_path: Path) -> None:
    file = {name: "/etc/ca.pem"}
    honour_ca_variables(file)
    assert file["SSL_CERT_FILE"] == "/etc/ca.pem"
    folder = {name: str(tmp_path)}
    honour_ca_variables(folder)
    assert folder == {name: str(tmp_path), "SSL_CERT_DIR": str(tmp_path)}


def test_the_variables_that_are_read_anyway_come_first() -> None:
    environment = {"SSL_CERT_FILE": "/a.pem", "REQUESTS_CA_BUNDLE": "/b.pem"}
    honour_ca_variables(environment)
    assert environment == {"SSL_CERT_FILE": "/a.pem", "REQUESTS_CA_BUNDLE": "/b.pem"}
    nothing: dict[str, str] = {}
    honour_ca_variables(nothing)
    assert nothing == {}
