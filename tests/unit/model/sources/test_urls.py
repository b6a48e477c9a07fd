import pytest

from builder.model.sources.urls import text_without_credentials, without_credentials


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hub.test/a", "https://hub.test/a"),
        ("https://user:secret@hub.test:8080/a?sig=secret#x", "https://hub.test:8080/a"),
        ("http://127.0.0.1:9", "http://127.0.0.1:9"),
    ],
)
def test_what_an_address_carries_besides_its_place_is_left_out(url: str, shown: str) -> None:
    assert without_credentials(url) == shown
    assert text_without_credentials(f"403 for url '{url}' (x)") == f"403 for url '{shown}' (x)"
