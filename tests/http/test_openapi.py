"""The description of the API in OpenAPI: it is valid, and has every route."""

import re

from openapi_spec_validator import OpenAPIV31SpecValidator

from synrepl.http_api.routes import ROUTES
from synrepl.transports.http.openapi_routes import build_description
from tests.http.builders import SiteCase


class OpenApiTests(SiteCase):
    """Asked like any other page, without a key."""

    def test_the_description_is_valid(self) -> None:
        """For every tool that reads it."""
        self.assertEqual([], list(OpenAPIV31SpecValidator(build_description()).iter_errors()))

    def test_the_description_is_public_and_made_once(self) -> None:
        """A client can read it before it has a key."""
        self.site = self.make_site(secret="s3cret")

        answer = self.get("/v1/openapi.json")

        self.assertEqual((200, "application/json"), (answer.status, answer.headers["content-type"]))
        self.assertEqual(build_description(), answer.json())
        self.assertEqual(answer.body, self.get("/v1/openapi.json").body)

    def test_it_has_every_route_with_its_parameters(self) -> None:
        """Those that are refused in the query are left out."""
        paths = build_description()["paths"]
        for route in ROUTES:
            operation = paths[route.template][route.method.lower()]
            names = [one["name"] for one in operation["parameters"]]
            documented = [one.name for one in (*route.query, *route.headers) if one.is_documented]

            self.assertEqual([*route.variables, *documented], names)

    def test_a_route_that_takes_a_key_may_refuse_it(self) -> None:
        """A public one does not."""
        paths = build_description()["paths"]

        self.assertIn("unauthorized", paths["/v1/status"]["get"]["responses"]["401"]["description"])
        self.assertIn("403", paths["/v1/status"]["get"]["responses"])
        self.assertEqual({"200"}, set(paths["/livez"]["get"]["responses"]))

    def test_bodies_and_answers_have_a_schema(self) -> None:
        """Made from the structs of the handlers."""
        description = build_description()
        schemas = description["components"]["schemas"]
        body = description["paths"]["/v1/streams/{stream}/facts"]["post"]["requestBody"]

        self.assertEqual(
            "#/components/schemas/AppendBody", body["content"]["application/json"]["schema"]["$ref"]
        )
        self.assertEqual({"facts", "writer", "idempotency_key"}, set(schemas["AppendBody"]["properties"]))
        referred = set(re.findall(r"#/components/schemas/(\w+)", str(description)))
        self.assertEqual(referred, referred & schemas.keys())
