"""Tests of the function, on real state and without Spark: they take milliseconds."""

from app import Visits

from strandline.testing import Harness

OUTPUT = "user string, visits bigint, pages int"


def test_every_fifth_visit_is_reported():
    with Harness(Visits(), schema="user string, page string", key="user", output=OUTPUT) as h:
        for page in ("/a", "/b", "/a", "/a"):
            assert h.push({"user": "ann", "page": page}) == []
        assert h.push({"user": "bob", "page": "/a"}) == []
        assert h.push({"user": "ann", "page": "/c"}) == [("ann", 5, 3)]
        assert h.state("ann") == {"count": 5, "pages": {"/a": 3, "/b": 1, "/c": 1}}
